// Training goes on while a checkpoint is written.
#include <doctest/doctest.h>

#include <atomic>
#include <mutex>

#include "ckpt/snapshot.h"
#include "ckpt_testing.h"

using namespace trainlaunch;

namespace {

// A channel on which the gathers of saves wait until they are let go.
class Gate final : public testing::PassedOn<> {
 public:
  using PassedOn::PassedOn;
  Result<std::vector<std::string>> gather(std::string_view name, std::string_view mine,
                                          Deadline deadline) override {
    if (name.starts_with("save: ")) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return open_; });
    }
    return PassedOn::gather(name, mine, deadline);
  }
  void set(bool open) {
    std::lock_guard lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

}  // namespace

TEST_CASE("what changes after save() returned is not in the checkpoint") {
  Temporary dir;
  Team(2).run([&](Control& control) {
    Gate gate(control);
    Host host;
    auto writer = open_writer(dir / "run", gate);
    REQUIRE(writer);
    Holding mine(control.world().rank, control.world().size);
    REQUIRE((*writer)->reserve(mine.pieces));
    mine.fill(1);
    (*writer)->save(mine.pieces, known_sizes(), known_state(1), {}, *host.device, *host.stream);
    mine.fill(2);  // nothing has been written yet: the gate is closed
    CHECK(!(*writer)->poll());
    CHECK(list_checkpoints(dir / "run")->empty());
    gate.set(true);
    (*writer)->wait();
    auto outcome = (*writer)->poll();
    REQUIRE(outcome);
    CHECK(outcome->status);
  });
  CHECK(load(dir / "run", 1) == "");
}

TEST_CASE("the next save waits for the one before it, and both are right") {
  Temporary dir;
  Team(1).run([&](Control& control) {
    Gate gate(control);
    Host host;
    auto writer = open_writer(dir / "run", gate);
    REQUIRE(writer);
    Holding mine(0, 1);
    mine.fill(1);
    (*writer)->save(mine.pieces, known_sizes(), known_state(1), {}, *host.device, *host.stream);
    std::atomic<bool> returned{false};
    std::thread second([&] {
      mine.fill(2);
      (*writer)->save(mine.pieces, known_sizes(), known_state(2), {}, *host.device, *host.stream);
      returned = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CHECK(!returned);
    gate.set(true);
    second.join();
    (*writer)->wait();
    for (uint64_t step : {1, 2}) {
      auto outcome = (*writer)->poll();
      REQUIRE(outcome);
      CHECK(outcome->status);
      CHECK(outcome->step == step);
    }
    CHECK(!(*writer)->poll());
  });
  CHECK(load(dir / "run", 2) == "");
  std::filesystem::remove_all(step_path(dir / "run", 2));
  CHECK(load(dir / "run", 1) == "");
}

TEST_CASE("a writer that goes away has finished") {
  Temporary dir;
  Team(3).run([&](Control& control) {
    Host host;
    Holding mine(control.world().rank, 3);
    mine.fill(1);
    auto writer = open_writer(dir / "run", control);
    REQUIRE(writer);
    (*writer)->save(mine.pieces, known_sizes(), known_state(1), {}, *host.device, *host.stream);
  });
  CHECK(load(dir / "run", 1) == "");
  CHECK(litter(dir / "run").empty());
}

TEST_CASE("one buffer serves every save, and other pieces too") {
  Holding large(0, 1), small(0, 2);
  Host host;
  Snapshot snapshot;
  auto bytes = snapshot.reserve(large.pieces);
  REQUIRE(bytes);
  large.fill(1);
  REQUIRE(snapshot.take(large.pieces, *host.device, *host.stream));
  REQUIRE(snapshot.ready(Deadline::never()));
  CHECK(snapshot.image().size() == *bytes);
  const auto* first = snapshot.image().data();
  small.fill(2);
  REQUIRE(snapshot.take(small.pieces, *host.device, *host.stream));
  CHECK(snapshot.image().data() == first);
  CHECK(snapshot.image().size() < *bytes);

  Snapshot fresh;
  REQUIRE(fresh.take(small.pieces, *host.device, *host.stream));
  const auto a = fresh.image(), b = snapshot.image();
  CHECK(std::equal(a.begin(), a.end(), b.begin(), b.end()));
}

TEST_CASE("ranks of a node write in turns, as many at a time as they may") {
  for (int writers : {0, 1, 2, 3}) {
    Temporary dir;
    Team(std::vector<int>{4, 1}).run([&](Control& control) {
      auto writer = open_writer(dir / "run", control, {3, 0, writers, true});
      REQUIRE(writer);
      CHECK(save_known(**writer, control.world(), 1));
    });
    CHECK(load(dir / "run", 1) == "");
  }
}

TEST_CASE("a hurried save is not read back") {
  Temporary dir;
  Team(1).run([&](Control& control) {
    Host host;
    Holding mine(0, 1);
    mine.fill(1);
    auto writer = open_writer(dir / "run", control);
    REQUIRE(writer);
    (*writer)->save(mine.pieces, known_sizes(), known_state(1), {{}, true}, *host.device,
                    *host.stream);
    (*writer)->wait();
    CHECK(!std::filesystem::exists(step_path(dir / "run", 1) + "/VERIFIED"));
  });
  CHECK(load(dir / "run", 1) == "");
}
