// Saves that cannot be written; those that are cut short are in tests/crash.
#include <doctest/doctest.h>

#include "ckpt_testing.h"

using namespace trainlaunch;

TEST_CASE("a full disk is said before and leaves the older checkpoint") {
  Temporary dir;
  const SmallDisk disk(dir / "disk", "size=1200k,nr_inodes=8");
  if (!disk) return;
  auto first = save(disk / "run", 1);
  auto second = save(disk / "run", 2);
  const auto steps = list_checkpoints(disk / "run");
  const auto left = litter(disk / "run");
  const std::string loaded = load(disk / "run", 1);
  REQUIRE(first);
  REQUIRE(!second);
  CHECK(second.error().what.find("step 2") != std::string::npos);
  CHECK(second.error().what.find("room for 0 more files") != std::string::npos);
  CHECK(*steps == std::vector<uint64_t>{1});
  CHECK(left.empty());
  CHECK(loaded == "");
}

TEST_CASE("too little room is said before anything is written") {
  Temporary dir;
  const SmallDisk disk(dir / "disk", "size=900k");
  if (!disk) return;
  auto saved = save(disk / "run", 1);
  REQUIRE(!saved);
  CHECK(saved.error().what.starts_with("checkpoint of step 1 failed: " + (disk / "run has ")));
  CHECK(saved.error().what.ends_with(" MiB free and the checkpoint needs 2 MiB"));
  CHECK(list_checkpoints(disk / "run")->empty());
  CHECK(litter(disk / "run").empty());
}
