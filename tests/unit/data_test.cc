#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "data/data.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "temporary.h"

using namespace trainlaunch;

namespace {

std::vector<uint64_t> epoch(uint64_t seed, uint64_t number, uint64_t n) {
  std::vector<uint64_t> all(n);
  for (uint64_t i = 0; i < n; ++i) all[i] = order(seed, number * n + i, n);
  return all;
}

std::string counting(size_t n) {
  std::string s(n, '\0');
  for (size_t i = 0; i < n; ++i) s[i] = static_cast<char>(i * 7 % 251);
  return s;
}

std::string refusal(const std::string& path, int64_t context) {
  auto text = Text::open(path, context);
  REQUIRE(!text);
  CHECK(text.error().exit == exit_code::usage);
  CHECK(text.error().what.find('\n') == std::string::npos);
  return text.error().what;
}

}  // namespace

TEST_CASE("every epoch is a permutation") {
  for (uint64_t n : {1, 2, 3, 4, 5, 7, 16, 17, 100, 1000, 1025, 4096, 10007}) {
    for (uint64_t number : {0, 1, 5}) {
      auto all = epoch(1337, number, n);
      std::sort(all.begin(), all.end());
      std::vector<uint64_t> identity(n);
      std::iota(identity.begin(), identity.end(), 0);
      CHECK(all == identity);
    }
  }
}

TEST_CASE("the order depends on the seed and on the epoch") {
  CHECK(epoch(1, 0, 1000) == epoch(1, 0, 1000));
  CHECK(epoch(1, 0, 1000) != epoch(2, 0, 1000));
  CHECK(epoch(1, 0, 1000) != epoch(1, 1, 1000));
}

// In a random permutation the number of fixed points is Poisson(1), neighbours stay neighbours with
// probability 1/n, and the rank correlation is 0 with standard deviation 1/sqrt(n - 1).
TEST_CASE("the order looks random") {
  const uint64_t n = 10000;
  auto p = epoch(42, 3, n);
  int fixed = 0, runs = 0;
  double correlation = 0;
  const double mean = (n - 1) / 2.0, variance = (double(n) * n - 1) / 12;
  for (uint64_t i = 0; i < n; ++i) {
    fixed += p[i] == i;
    runs += i > 0 && p[i] == p[i - 1] + 1;
    correlation += (i - mean) * (p[i] - mean) / variance / n;
  }
  CHECK(fixed <= 6);
  CHECK(runs <= 6);
  CHECK(std::abs(correlation) < 4 / std::sqrt(n - 1.0));
}

// All 24 orders of four samples turn up, about equally often (chi-squared, 23 degrees of freedom:
// 49.7 is exceeded once in a thousand).
TEST_CASE("small epochs take every order") {
  std::map<std::vector<uint64_t>, int> seen;
  const int draws = 4800;
  for (int e = 0; e < draws; ++e) ++seen[epoch(7, static_cast<uint64_t>(e), 4)];
  CHECK(seen.size() == 24);
  double chi = 0;
  for (auto& [p, count] : seen) chi += (count - 200.0) * (count - 200.0) / 200;
  CHECK(chi < 49.7);
}

TEST_CASE("large sample counts") {
  const uint64_t n = (uint64_t{1} << 40) + 3;
  std::set<uint64_t> seen;
  for (uint64_t g = 0; g < 1000; ++g) seen.insert(order(1, g, n));
  CHECK(seen.size() == 1000);
  CHECK(*seen.rbegin() < n);
  CHECK(*seen.rbegin() > n / 2);
}

TEST_CASE("a global batch is dealt out completely, in order and evenly") {
  for (int64_t global : {1, 5, 12, 32, 33}) {
    for (int64_t micro : {1, 4, 7, 64}) {
      for (int size : {1, 2, 3, 4, 7, 40}) {
        uint64_t next = 1000;
        size_t least = ~size_t{0}, most = 0;
        for (int rank = 0; rank < size; ++rank) {
          auto mine = deal(1000, global, micro, rank, size);
          least = std::min(least, mine.size());
          most = std::max(most, mine.size());
          for (const Micro& m : mine) {
            CHECK(m.first == next);
            CHECK(m.count >= 1);
            CHECK(m.count <= micro);
            next += static_cast<uint64_t>(m.count);
          }
        }
        CHECK(next == 1000 + static_cast<uint64_t>(global));
        CHECK(most - least <= 1);
      }
    }
  }
}

TEST_CASE("the micro-batches are the same ones at every world size") {
  auto cuts = [](int size) {
    std::vector<std::pair<uint64_t, int64_t>> all;
    for (int rank = 0; rank < size; ++rank)
      for (const Micro& m : deal(64, 30, 4, rank, size)) all.push_back({m.first, m.count});
    return all;
  };
  CHECK(cuts(1) == cuts(2));
  CHECK(cuts(1) == cuts(3));
  CHECK(cuts(1) == cuts(8));
}

TEST_CASE("a text gives windows of bytes, the last tenth for validation") {
  Temporary dir;
  const std::string bytes = counting(1000);
  write_file(dir / "t", bytes);
  auto text = Text::open(dir / "t", 16);
  REQUIRE(text);
  CHECK((*text)->bytes() == 1000);
  CHECK((*text)->training_samples() == 56);   // windows of 17 from 0, 16, ... inside 900 bytes
  CHECK((*text)->validation_samples() == 6);  // inside the last 100
  std::vector<int32_t> tokens(16), targets(16);
  auto matches = [&](size_t from) {
    for (size_t i = 0; i < 16; ++i) {
      CHECK(tokens[i] == static_cast<uint8_t>(bytes[from + i]));
      CHECK(targets[i] == static_cast<uint8_t>(bytes[from + i + 1]));
    }
  };
  REQUIRE((*text)->training(55, tokens.data(), targets.data()));
  matches(55 * 16);
  REQUIRE((*text)->validation(5, tokens.data(), targets.data()));
  matches(900 + 5 * 16);
}

TEST_CASE("no validation byte is trained on") {
  Temporary dir;
  std::string bytes(900, 'a');
  bytes.append(100, 'z');
  write_file(dir / "t", bytes);
  auto text = Text::open(dir / "t", 10);
  REQUIRE(text);
  std::vector<int32_t> tokens(10), targets(10);
  for (uint64_t s = 0; s < (*text)->training_samples(); ++s) {
    REQUIRE((*text)->training(s, tokens.data(), targets.data()));
    CHECK(std::count(tokens.begin(), tokens.end(), 'a') == 10);
    CHECK(std::count(targets.begin(), targets.end(), 'a') == 10);
  }
}

// The value is what `xxhsum -H2` prints for these bytes.
TEST_CASE("the digest is XXH3-128 of the file") {
  Temporary dir;
  write_file(dir / "t", counting(1000));
  auto text = Text::open(dir / "t", 16);
  REQUIRE(text);
  CHECK((*text)->digest() == "5ed35fc6b4f0ef20d1eb8367bf3294e7");
}

TEST_CASE("a text that cannot be used is one line that names the option") {
  Temporary dir;
  write_file(dir / "empty", "");
  write_file(dir / "short", std::string(100, 'x'));
  mkfifo((dir / "fifo").c_str(), 0600);
  CHECK(refusal("", 8).find("data.path") == 0);
  CHECK(refusal(dir / "missing", 8).find("No such file") != std::string::npos);
  CHECK(refusal(dir / "empty", 8).find("too short") != std::string::npos);
  CHECK(refusal(dir / "short", 64).find("at least 650") != std::string::npos);
  CHECK(refusal(dir.path(), 8).find("not a regular file") != std::string::npos);
  CHECK(refusal(dir / "fifo", 8).find("not a regular file") != std::string::npos);
}

TEST_CASE("the least length that is asked for is enough") {
  Temporary dir;
  write_file(dir / "t", std::string(650, 'x'));
  CHECK(Text::open(dir / "t", 64));
  write_file(dir / "t", std::string(649, 'x'));
  CHECK(!Text::open(dir / "t", 64));
}

TEST_CASE("a file that shrinks while it is used is an error, not a signal") {
  Temporary dir;
  write_file(dir / "t", counting(10000));
  auto text = Text::open(dir / "t", 16);
  REQUIRE(text);
  std::filesystem::resize_file(dir / "t", 100);
  std::vector<int32_t> tokens(16), targets(16);
  CHECK((*text)->training(0, tokens.data(), targets.data()));
  auto s = (*text)->training(100, tokens.data(), targets.data());
  REQUIRE(!s);
  CHECK(s.error().what.find(dir / "t") != std::string::npos);
}
