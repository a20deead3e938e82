// Checkpoints on the nodes themselves, beside the shared ones.
#include <doctest/doctest.h>

#include "ckpt_testing.h"

using namespace trainlaunch;

namespace {

using PerNode = std::vector<int>;

SaveOptions with_local(const Temporary& dir) {
  SaveOptions options;
  options.local_dir = dir / "local";
  return options;
}

// Saves steps at a level, by a writer of its own.
void save_at(const Temporary& dir, const PerNode& per_node, Levels levels,
             const std::vector<uint64_t>& steps) {
  Team(per_node).run([&](Control& control) {
    auto writer = open_writer(dir / "run", control, with_local(dir));
    REQUIRE(writer);
    Holding mine(control.world().rank, control.world().size);
    Host host;
    for (uint64_t step : steps) {
      mine.fill(step);
      (*writer)->save(mine.pieces, known_sizes(), known_state(step), {levels, false}, *host.device,
                      *host.stream);
      (*writer)->wait();
      for (int n = levels.shared + levels.local; n > 0; --n) {
        auto outcome = (*writer)->poll();
        REQUIRE(outcome);
        CHECK_MESSAGE(outcome->status, (outcome->status ? "" : outcome->status.error().what));
        CHECK(outcome->step == step);
        CHECK(outcome->level == (n == 2 || !levels.shared ? Level::local : Level::shared));
      }
      CHECK((*writer)->warnings().empty());
    }
  });
}

struct Found {
  Level level = Level::shared;
  uint64_t step = 0;
  size_t passed_over = 0;
};

// What a job would go on from; every rank reads what it needs and compares.
Found find(const Temporary& dir, const PerNode& per_node,
           std::optional<uint64_t> step = std::nullopt) {
  Found found;
  Team(per_node).run([&](Control& control) {
    auto writer = open_writer(dir / "run", control, with_local(dir));
    REQUIRE(writer);
    const auto sources = (*writer)->sources();
    auto agreed = Reader::agree(sources, step, control);
    REQUIRE(agreed);
    const World& w = control.world();
    if (w.rank == 0) found.passed_over = agreed->passed_over.size();
    if (!agreed->reader) return;
    Reader& reader = *agreed->reader;
    if (w.rank == 0) {
      found.step = reader.state().step;
      found.level = reader.level();
    }
    Host host;
    Holding mine(w.rank, w.size), all(0, 1);
    REQUIRE(reader.read(mine.pieces, *host.device, *host.stream));
    CHECK(mine.wrong(reader.state().step) == 0);
    CHECK(reader.covers(all.pieces).has_value() == reader.whole());
    if (!reader.whole()) return;
    REQUIRE(reader.read(all.pieces, *host.device, *host.stream));
    CHECK(all.wrong(reader.state().step) == 0);
  });
  return found;
}

// The directory of a node.
std::string local(const Temporary& dir, const std::string& node) {
  return dir / "local/" + read_file(dir / "run/run.id") + "." + node;
}

constexpr Levels both{true, true}, only_local{false, true}, only_shared{true, false};

}  // namespace

TEST_CASE("each node has its ranks' part, and the nearest of the newest is taken") {
  Temporary dir;
  save_at(dir, {2, 1}, both, {2});
  save_at(dir, {2, 1}, only_local, {3, 4, 5});
  CHECK(*list_checkpoints(dir / "run") == std::vector<uint64_t>{2});
  for (const char* node : {"here", "there1"})
    CHECK(*list_checkpoints(local(dir, node)) == std::vector<uint64_t>{4, 5});
  CHECK(entries(step_path(local(dir, "here"), 5)) ==
        std::vector<std::string>{"MANIFEST.json", "VERIFIED", shard_name(0), shard_name(1)});
  CHECK(entries(step_path(local(dir, "there1"), 5)) ==
        std::vector<std::string>{"MANIFEST.json", "VERIFIED", shard_name(2)});

  Found found = find(dir, {2, 1});
  CHECK(found.level == Level::local);
  CHECK(found.step == 5);
  save_at(dir, {2, 1}, only_shared, {6});
  found = find(dir, {2, 1});
  CHECK(found.level == Level::shared);
  CHECK(found.step == 6);
  found = find(dir, {2, 1}, 4);
  CHECK(found.level == Level::local);
  CHECK(found.step == 4);
}

TEST_CASE("of one step the local one is taken, and on one node it is whole") {
  Temporary dir;
  save_at(dir, {3}, both, {2});
  const Found found = find(dir, {3});
  CHECK(found.level == Level::local);
  CHECK(found.step == 2);
}

TEST_CASE("a local checkpoint that a node lost, or that is of other ranks, is passed over") {
  Temporary dir;
  save_at(dir, {1, 1}, only_shared, {2});
  save_at(dir, {1, 1}, only_local, {3, 4});
  for (const PerNode& others : {PerNode{2}, PerNode{1, 1, 1}, PerNode{1}}) {
    const Found found = find(dir, others);
    CHECK(found.level == Level::shared);
    CHECK(found.step == 2);
    CHECK(found.passed_over == 2);
  }
  std::filesystem::remove_all(step_path(local(dir, "there1"), 4));
  Found found = find(dir, {1, 1});
  CHECK(found.level == Level::local);
  CHECK(found.step == 3);
  std::filesystem::remove_all(local(dir, "there1"));
  found = find(dir, {1, 1});
  CHECK(found.level == Level::shared);
  CHECK(found.step == 2);
}

TEST_CASE("a damaged byte in a local checkpoint is found by its node") {
  Temporary dir;
  save_at(dir, {1, 2}, only_shared, {2});
  save_at(dir, {1, 2}, only_local, {3});
  const std::string file = shard(local(dir, "there1"), 3, 2);
  std::string bytes = read_file(file);
  bytes[bytes.size() - 9] ^= 1;
  write_file(file, bytes);
  const Found found = find(dir, {1, 2});
  CHECK(found.level == Level::shared);
  CHECK(found.passed_over == 1);
}

TEST_CASE("nodes that have different checkpoints of a step are found out") {
  Temporary dir;
  save_at(dir, {1, 1}, only_local, {3});
  const std::string kept = local(dir, "there1");
  std::filesystem::rename(step_path(kept, 3), dir / "kept");
  std::filesystem::remove_all(step_path(local(dir, "here"), 3));
  Team(PerNode{1, 1}).run([&](Control& control) {  // the same step, other content
    auto writer = open_writer(dir / "run", control, with_local(dir));
    REQUIRE(writer);
    Holding mine(control.world().rank, 2);
    mine.fill(77);
    Host host;
    (*writer)->save(mine.pieces, known_sizes(), known_state(3), {only_local, false}, *host.device,
                    *host.stream);
  });
  std::filesystem::remove_all(step_path(kept, 3));
  std::filesystem::rename(dir / "kept", step_path(kept, 3));
  Team(PerNode{1, 1}).run([&](Control& control) {
    auto writer = open_writer(dir / "run", control, with_local(dir));
    REQUIRE(writer);
    const auto sources = (*writer)->sources();
    auto agreed = Reader::agree(sources, std::nullopt, control);
    REQUIRE(agreed);
    CHECK(!agreed->reader);  // and there is no shared one: the run has not got that far
    REQUIRE(agreed->passed_over.size() == 1);
    CHECK(agreed->passed_over[0].level == Level::local);
    CHECK(agreed->passed_over[0].why.find("rank 1 (there1): sees another manifest than rank 0") !=
          std::string::npos);
    // What was passed over makes room for the same step.
    REQUIRE((*writer)->go_on_from(0, agreed->passed_over));
    CHECK(list_checkpoints(sources[1].path)->empty());
  });
}

TEST_CASE("a node that cannot write fails the local save on all nodes") {
  Temporary dir;
  Team(PerNode{1, 1}).run([&](Control& control) {
    auto writer = open_writer(dir / "run", control, with_local(dir));
    REQUIRE(writer);
    if (control.world().rank == 1)  // the name is taken there
      std::filesystem::create_directories(step_path((*writer)->sources()[1].path, 2) + "/x");
    REQUIRE(control.barrier("ready", Deadline::never()));
    Holding mine(control.world().rank, 2);
    mine.fill(2);
    Host host;
    (*writer)->save(mine.pieces, known_sizes(), known_state(2), {both, false}, *host.device,
                    *host.stream);
    (*writer)->wait();
    auto at_node = (*writer)->poll(), shared = (*writer)->poll();
    REQUIRE(at_node);
    REQUIRE(shared);
    CHECK(!at_node->status);
    CHECK(at_node->status.error().what.starts_with(
        "local checkpoint of step 2 failed: rank 1 (there1): "));
    CHECK(shared->status);
  });
  CHECK(list_checkpoints(local(dir, "here"))->empty());
  CHECK(litter(local(dir, "here")).empty());
}

TEST_CASE("another run in the same local directory has nothing to do with this one") {
  Temporary dir;
  save_at(dir, {1}, only_local, {3});
  std::filesystem::remove_all(dir / "run");
  CHECK(find(dir, {1}).step == 0);
}
