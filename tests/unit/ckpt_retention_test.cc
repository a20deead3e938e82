// Which checkpoints stay.
#include <doctest/doctest.h>

#include <set>

#include "ckpt/retention.h"
#include "ckpt_testing.h"

using namespace trainlaunch;

namespace {

std::vector<Kept> committed(std::initializer_list<uint64_t> steps,
                            const std::set<uint64_t>& unverified = {}) {
  std::vector<Kept> all;
  for (uint64_t s : steps) all.push_back({s, !unverified.contains(s)});
  return all;
}
using Steps = std::vector<uint64_t>;

}  // namespace

TEST_CASE("the newest verified ones and the milestones stay") {
  CHECK(expendable(committed({1, 2, 3, 4, 5}), 3, 0) == Steps{1, 2});
  CHECK(expendable(committed({1, 2, 3, 4, 5}), 1, 0) == Steps{1, 2, 3});
  CHECK(expendable(committed({1, 2, 3, 4, 5}), 0, 0) == Steps{});
  CHECK(expendable(committed({1, 2}), 1, 0) == Steps{});
  CHECK(expendable(committed({}), 1, 0) == Steps{});
  CHECK(expendable(committed({10, 15, 20, 25, 30, 35}), 2, 20) == Steps{10, 15, 25});
  CHECK(expendable(committed({1, 2, 3, 4, 5}, {5}), 2, 0) == Steps{1, 2});
  CHECK(expendable(committed({1, 2, 3, 4, 5}, {2, 4, 5}), 2, 0) == Steps{});
}

// Whatever there is: the rules hold, and removing again removes nothing more.
TEST_CASE("what retention promises holds for every set of checkpoints") {
  for (unsigned present = 0; present < 128; ++present) {
    for (unsigned verified = 0; verified < 128; ++verified) {
      if ((verified & ~present) != 0) continue;
      std::vector<Kept> all;
      for (uint64_t s = 0; s < 7; ++s)
        if (present >> s & 1) all.push_back({s, (verified >> s & 1) != 0});
      for (int keep : {1, 2, 3}) {
        const Steps gone = expendable(all, keep, 4);
        std::vector<Kept> left;
        bool good = true;
        for (size_t i = 0; i < all.size(); ++i) {
          if (std::find(gone.begin(), gone.end(), all[i].step) == gone.end()) {
            left.push_back(all[i]);
            continue;
          }
          good &= all[i].verified && i + 2 < all.size() && all[i].step % 4 != 0;
        }
        const auto count = [](const std::vector<Kept>& v) {
          return std::count_if(v.begin(), v.end(), [](const Kept& k) { return k.verified; });
        };
        good &= count(left) >= std::min<int64_t>(keep, count(all));
        good &= expendable(left, keep, 4).empty();
        if (!good) FAIL("present " << present << " verified " << verified << " keep " << keep);
      }
    }
  }
}

TEST_CASE("a writer removes what need not stay, after each save") {
  Temporary dir;
  const std::string run = dir / "run";
  Team(2).run([&](Control& control) {
    auto writer = open_writer(run, control, {2, 3, 0, true});
    REQUIRE(writer);
    for (uint64_t step : {1, 2, 3, 4, 5, 6, 7}) {
      REQUIRE(save_known(**writer, control.world(), step));
      CHECK((*writer)->warnings().empty());
    }
  });
  CHECK(*list_checkpoints(run) == Steps{3, 6, 7});
  CHECK(litter(run).empty());
}

TEST_CASE("a checkpoint that was never read back stays until it has been") {
  Temporary dir;
  const std::string run = dir / "run";
  for (uint64_t step : {1, 2, 3, 4}) REQUIRE(save(run, step));
  std::filesystem::remove(step_path(run, 2) + "/VERIFIED");
  Team(1).run([&](Control& control) {
    auto writer = open_writer(run, control, {2, 0, 0, true});
    REQUIRE(writer);
    REQUIRE(save_known(**writer, control.world(), 5));
    CHECK(*list_checkpoints(run) == Steps{2, 4, 5});
    REQUIRE((*writer)->mark_verified(2, "its digest"));
    REQUIRE(save_known(**writer, control.world(), 6));
    CHECK(*list_checkpoints(run) == Steps{5, 6});
  });
  Team(1).run([&](Control& control) {
    auto writer = open_writer(run, control, {1, 0, 0, false});
    REQUIRE(writer);
    for (uint64_t step : {7, 8, 9}) REQUIRE(save_known(**writer, control.world(), step));
    CHECK(!std::filesystem::exists(step_path(run, 8) + "/VERIFIED"));
  });
  CHECK(*list_checkpoints(run) == Steps{8, 9});
}
