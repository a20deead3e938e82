// What `gpu-bind check` writes of a rank, read back.
#include "spank/facts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "healthy_jobs.h"
#include "spank/doctor.h"
#include "texts.h"

using namespace trainlaunch;

TEST_CASE("facts survive their JSON form, whole and in parts, labelled and mixed") {
  auto facts = job(1);
  facts[0].memlock = 65536;
  facts[0].differs["cpus"] = "planned 0-13, has 0";
  facts[0].warnings["cores-few"] = "8 ranks share 4 cores";
  facts[0].files["NCCL_TOPO_FILE"] = false;
  facts[0].gpus[pci(3)].numa.reset();
  const std::string whole = facts_json(facts[0], 0);
  for (const size_t limit : {size_t{0}, longest_line, size_t{400}}) {
    const auto back = parse_facts(facts_json(facts[0], limit), "test");
    REQUIRE(back);
    REQUIRE(back->size() == 1);
    CHECK(facts_json(back->front(), 0) == whole);
  }

  // As srun mixes the lines of several ranks.
  std::vector<std::string> lines;
  for (const RankFacts& f : facts) {
    for (const std::string& line : lines_of(facts_json(f, longest_line))) {
      CHECK(line.size() <= longest_line);
      lines.push_back(line + '\n');
    }
  }
  CHECK(lines.size() > facts.size());
  std::reverse(lines.begin(), lines.end());
  std::string mixed = "a login script's greeting\n";
  for (const std::string& line : lines) mixed += line;
  const auto all = parse_facts(mixed, "test");
  REQUIRE(all);
  REQUIRE(all->size() == facts.size());
  for (size_t i = 0; i < facts.size(); ++i)
    CHECK(facts_json((*all)[i], 0) == facts_json(facts[i], 0));

  // `srun --label` gives every piece of a long line a label.
  std::string labelled;
  for (size_t i = 0; i < 2; ++i) {
    const std::string line = facts_json(facts[i], 0);
    for (size_t at = 0; at < line.size(); at += 1024) {
      const std::string piece = line.substr(at, 1024);
      labelled += (i ? "1: " : "0: ") + piece + (piece.back() == '\n' ? "" : "\n");
    }
  }
  const auto two = parse_facts(labelled, "test");
  REQUIRE(two);
  REQUIRE(two->size() == 2);
  CHECK(facts_json(two->back(), 0) == facts_json(facts[1], 0));
}

TEST_CASE("what is no output of check is refused, with its line") {
  const auto refusal = [](const std::string& text) {
    const auto facts = parse_facts(text, "f");
    CHECK(!facts);
    return facts ? "" : facts.error().what;
  };
  CHECK(has(refusal(""), "f: no object"));
  CHECK(has(refusal("hello\n{\"a\":1}\n"), "f:2: no object"));
  CHECK(has(refusal("{\"version\":2,\"rank\":0}\n"), "f:1: version 2"));
  CHECK(has(refusal("{\"version\":1,\"rank\":0\n"), "f:1: no object"));
  CHECK(has(refusal("3: {\"version\":1,\n"), "rank 3 is cut off"));
  std::string deep = "{\"version\":1";
  for (int i = 0; i < 100000; ++i) deep += ",\"a\":{\"b\":1";
  CHECK(has(refusal(deep), "no object"));
  // Members of other types count as unknown.
  const auto odd = parse_facts(
      R"({"version":1,"rank":-7,"cpus":[1],"gpus":{"x":3},"nics":7,"env":{"A":1},"visible":{"1":2}})",
      "f");
  REQUIRE(odd);
  CHECK(odd->front().rank == 0);
  CHECK(diagnose(*odd).size() <= 1);
}
