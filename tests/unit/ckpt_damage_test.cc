// Damage of every kind is found, and said where it is.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "ckpt_testing.h"

using namespace trainlaunch;
using nlohmann::json;

TEST_CASE("a flipped byte is found and the file is named") {
  Temporary dir;
  REQUIRE(save(dir / "run", 4, 2));
  std::vector<std::string> files{shard(dir / "run", 4, 0), shard(dir / "run", 4, 1),
                                 manifest(dir / "run", 4)};
  for (const std::string& file : files) {
    const std::string good = read_file(file);
    for (size_t at = 0; at < good.size(); at += at < 1500 ? 13 : 797) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
      write_file(file, bad);
      const std::string problem = load(dir / "run", 4);
      if (problem.find(file) == std::string::npos) FAIL("byte " << at << ": " << problem);
    }
    write_file(file, good);
  }
  CHECK(load(dir / "run", 4) == "");
}

TEST_CASE("truncated, grown and missing files are found") {
  Temporary dir;
  REQUIRE(save(dir / "run", 4, 2));
  for (const std::string& file : {shard(dir / "run", 4, 1), manifest(dir / "run", 4)}) {
    const std::string good = read_file(file);
    for (size_t n : {size_t{0}, size_t{1}, size_t{45}, good.size() / 2, good.size() - 1}) {
      write_file(file, good.substr(0, n));
      CHECK(load(dir / "run", 4).find(file) != std::string::npos);
    }
    write_file(file, good + "x");
    CHECK(load(dir / "run", 4).find(file) != std::string::npos);
    std::filesystem::remove(file);
    CHECK(load(dir / "run", 4).find(file) != std::string::npos);
    std::filesystem::create_symlink("/dev/zero", file);
    CHECK(load(dir / "run", 4).find(file) != std::string::npos);
    std::filesystem::remove(file);
    write_file(file, good);
  }
  CHECK(load(dir / "run", 4) == "");
}

TEST_CASE("two shards exchanged are found") {
  Temporary dir;
  REQUIRE(save(dir / "run", 4, 2));
  const std::string a = read_file(shard(dir / "run", 4, 0)),
                    b = read_file(shard(dir / "run", 4, 1));
  write_file(shard(dir / "run", 4, 0), b);
  write_file(shard(dir / "run", 4, 1), a);
  CHECK(load(dir / "run", 4).find("damaged") != std::string::npos);
}

TEST_CASE("a shard of another step is found") {
  Temporary dir;
  for (uint64_t step : {3, 4}) REQUIRE(save(dir / "run", step, 2));
  write_file(shard(dir / "run", 4, 1), read_file(shard(dir / "run", 3, 1)));
  std::vector<std::string> passed;
  CHECK(load(dir / "run", 3, &passed) == "");
  REQUIRE(passed.size() == 1);
  CHECK(passed[0].find(shard(dir / "run", 4, 1) + " is damaged") != std::string::npos);
}

TEST_CASE("a checkpoint under the name of another step is found") {
  Temporary dir;
  for (uint64_t step : {3, 4}) REQUIRE(save(dir / "run", step));
  std::filesystem::rename(step_path(dir / "run", 3), step_path(dir / "run", 5));
  std::vector<std::string> passed;
  CHECK(load(dir / "run", 4, &passed) == "");
  REQUIRE(passed.size() == 1);
  CHECK(passed[0].find("is of step 3") != std::string::npos);
}

// A manifest cut anywhere, with a digest that is right for what is left, is refused and never
// believed: digests are no protection from a writer that was wrong.
TEST_CASE("no piece of a manifest is taken for one") {
  Temporary dir;
  REQUIRE(save(dir / "run", 1));
  const std::string good = read_file(manifest(dir / "run", 1));
  const std::string body = good.substr(good.find("\",") + 2);
  auto sealed = [](const std::string& rest) {
    Digest digest;
    digest.update(rest.data(), rest.size());
    return "{\"digest\":\"" + digest.hex() + "\"," + rest;
  };
  CHECK(sealed(body) == good);
  for (size_t n = 0; n + 1 < body.size(); ++n) {
    auto cut = parse_manifest(sealed(body.substr(0, n)), "x");
    if (n + 2 >= body.size()) continue;
    CHECK(!cut);
  }
  auto with = [&](auto change) {
    json j = json::parse(good);
    j.erase("digest");
    change(j);
    auto r = parse_manifest(sealed(j.dump().substr(1)), "x");
    CHECK(!r);
    return r ? "" : r.error().what;
  };
  for (int format : {1, 3})
    CHECK(with([&](json& j) { j["format"] = format; }).find("format " + std::to_string(format)) !=
          std::string::npos);
  CHECK(with([](json& j) { j["format"] = "1"; }) != "");
  CHECK(with([](json& j) { j.erase("state"); }).find("state") != std::string::npos);
  CHECK(with([](json& j) { j["state"]["step"] = -1; }) != "");
  CHECK(with([](json& j) { j["state"]["config"]["a"] = 1; }) != "");
  CHECK(with([](json& j) { j["state"]["config"]["model.width"] = "65"; }).find("state.config") !=
        std::string::npos);
  CHECK(with([](json& j) { j["tensors"]["wte"] = 1e300; }) != "");
  CHECK(with([](json& j) { j["tensors"]["wte"] = ~uint64_t{0}; }) != "");
  CHECK(with([](json& j) { j["tensors"]["more"] = 5; }).find("more") != std::string::npos);
  CHECK(with([](json& j) { j["files"][0]["name"] = "../../etc/passwd"; }) != "");
  CHECK(with([](json& j) { j["files"] = 3; }) != "");
  CHECK(with([](json& j) { j["runs"].erase(0); }).find("exactly once") != std::string::npos);
  CHECK(with([](json& j) { j["runs"].push_back(j["runs"][0]); }) != "");
  CHECK(with([](json& j) { j["runs"][0][3] = ~uint64_t{0}; }) != "");
  CHECK(with([](json& j) { j["runs"][0][4] = 1; }).find("no file") != std::string::npos);
  CHECK(with([](json& j) { j["runs"][0][5] = uint64_t{1} << 40; }).find("within") !=
        std::string::npos);
  CHECK(with([](json& j) { j["runs"][0][5] = 3; }) != "");
  CHECK(with([](json& j) { j["runs"][0] = json::array({"wte"}); }) != "");
}
