// What train-launch says when the binding plans of a job's nodes do not go together.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "launcher/plans.h"

#include <doctest/doctest.h>

#include <map>

#include "channels.h"
#include "texts.h"

using namespace trainlaunch;

namespace {

World world_of(const std::vector<int>& ranks_of_node) {
  std::vector<std::string> nodes;
  for (size_t n = 1; n <= ranks_of_node.size(); ++n) nodes.push_back("n" + std::to_string(n));
  return testing::world_of(ranks_of_node, nodes, 0);
}

// GPU_BIND_PLAN from its three parts.
std::string plan(char whole, char rails, char ports) {
  return std::string(32, whole) + std::string(16, rails) + std::string(16, ports);
}

std::vector<std::string> of_nodes(const World& w, const std::vector<std::string>& plans) {
  std::vector<std::string> words(w.node_of.size());
  for (size_t r = words.size(); r-- > 0;) {
    const auto node = static_cast<size_t>(w.node_of[r]);
    const bool first = r == 0 || w.node_of[r - 1] != w.node_of[r];
    words[r] = first ? plans[node] : "";
  }
  return words;
}

}  // namespace

TEST_CASE("one rank of a node speaks for it") {
  std::map<std::string, std::string> env{{"GPU_BIND_PLAN", plan('a', 'b', 'c')}};
  const auto get = [&](const char* name) {
    const auto at = env.find(name);
    return at == env.end() ? nullptr : at->second.c_str();
  };
  World w = world_of({2, 2});
  CHECK(plan_word(w, get) == plan('a', 'b', 'c'));
  w.local_rank = 1;
  CHECK(plan_word(w, get).empty());
  w.local_rank = 0;
  for (const char* odd :
       {"", "0", "no plan at all, but a text of exactly sixty-four characters....."}) {
    env["GPU_BIND_PLAN"] = odd;
    CHECK(plan_word(w, get) == "-");
  }
  env.clear();
  CHECK(plan_word(w, get) == "-");
}

TEST_CASE("nodes that are wired alike agree, whatever their names and numbers") {
  const World w = world_of({2, 2, 2});
  CHECK(plan_differences(
            w, of_nodes(w, {plan('1', 'b', 'c'), plan('2', 'b', 'c'), plan('3', 'b', 'c')}))
            .empty());
  CHECK(plan_differences(w, of_nodes(w, {"-", "-", "-"})).empty());
}

TEST_CASE(
    "ports of other nodes: another number of them, or another place (NVIDIA/nccl issue 820)") {
  const World w = world_of({2, 2, 2});
  auto lines = plan_differences(
      w, of_nodes(w, {plan('1', 'b', 'c'), plan('1', 'b', 'd'), plan('1', 'b', 'c')}));
  REQUIRE(lines.size() == 1);
  CHECK(has(lines[0], "number or kind of their fabric ports (n1, n3 against n2)"));
  lines = plan_differences(
      w, of_nodes(w, {plan('1', 'b', 'c'), plan('1', 'b', 'c'), plan('1', 'e', 'c')}));
  REQUIRE(lines.size() == 1);
  CHECK(has(lines[0], "which port serves which rank (n1, n2 against n3)"));
  CHECK(has(lines[0], "gpu-bind doctor"));
}

TEST_CASE("nodes with other counts of ranks have other rails, and nothing follows from that") {
  const World w = world_of({2, 4, 4});
  CHECK(plan_differences(
            w, of_nodes(w, {plan('1', 'a', 'c'), plan('2', 'b', 'c'), plan('2', 'b', 'c')}))
            .empty());
}

TEST_CASE("bound and unbound nodes in one job") {
  const World w = world_of({2, 2, 2});
  const auto lines =
      plan_differences(w, of_nodes(w, {plan('1', 'b', 'c'), "-", plan('1', 'b', 'c')}));
  REQUIRE(lines.size() == 1);
  CHECK(has(lines[0], "others have none (n1, n3 against n2)"));
}

TEST_CASE("many nodes are counted, not listed") {
  const World w = world_of(std::vector<int>(40, 1));
  std::vector<std::string> plans(40, plan('1', 'b', 'c'));
  plans[39] = plan('1', 'b', 'd');
  const auto lines = plan_differences(w, of_nodes(w, plans));
  REQUIRE(lines.size() == 1);
  CHECK(has(lines[0], "(n1, n2, n3, n4, n5, n6 and 33 more against n40)"));
}
