// Whose a run directory is, and what happens to what others left in it.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include "ckpt/directory.h"
#include "ckpt/ownership.h"
#include "ckpt_testing.h"

using namespace trainlaunch;

TEST_CASE("a run directory has one writer at a time, and the second hears who") {
  Temporary dir;
  const std::string run = dir / "run", saving = run + "/.step-000000002.0123.tmp";
  Team(1).run([&](Control& control) {
    auto first = open_writer(run, control);
    REQUIRE(first);
    std::filesystem::create_directory(saving);
    auto second = open_writer(run, control);
    REQUIRE(!second);
    CHECK(second.error().exit == exit_code::usage);
    const std::string process = "process " + std::to_string(getpid()) + " on here";
    CHECK(second.error().what.find(run + " is in use by ") != std::string::npos);
    CHECK(second.error().what.find(process + "; wait for it") != std::string::npos);
    CHECK(std::filesystem::exists(saving));
    CHECK(save_known(**first, control.world(), 1));
    first->reset();
    CHECK(open_writer(run, control));
    CHECK(!std::filesystem::exists(saving));
  });
}

TEST_CASE("what the lock file says is not believed to be text") {
  Temporary dir;
  const std::string run = dir / "run";
  Team(1).run([&](Control& control) {
    auto first = open_writer(run, control);
    REQUIRE(first);
    for (const std::string& text :
         {std::string(), std::string("\x1b[2J"), std::string(5000, 'x')}) {
      write_file(run + "/run.lock", text);
      auto second = open_writer(run, control);
      REQUIRE(!second);
      CHECK(second.error().what.find("is in use by another job;") != std::string::npos);
    }
  });
}

// Where a lock does not reach, two jobs can have one directory: here the lock file is taken away.
TEST_CASE("a zombie of an older attempt commits nothing and removes nothing") {
  Temporary dir;
  const std::string run = dir / "run";
  Team(1).run([&](Control& control) {
    auto zombie = open_writer(run, control, {1, 0, 0, true});
    REQUIRE(zombie);
    for (uint64_t step : {1, 2, 3}) REQUIRE(save_known(**zombie, control.world(), step));
    std::filesystem::remove(run + "/run.lock");

    auto successor = open_writer(run, control, {1, 0, 0, true});
    REQUIRE(successor);
    Holding mine(0, 1);
    mine.fill(4);
    const Outcome late = save_now(**zombie, mine.pieces, 4);
    REQUIRE(!late.status);
    CHECK(late.succeeded_by_another);
    CHECK(late.status.error().what.find("has been taken over by ") != std::string::npos);
    CHECK(late.status.error().what.find("process " + std::to_string(getpid())) !=
          std::string::npos);
    CHECK(*list_checkpoints(run) == std::vector<uint64_t>{2, 3});
    // It stays so, and the successor is not disturbed, not even by the same step.
    CHECK(save_now(**zombie, mine.pieces, 5).succeeded_by_another);
    REQUIRE(save_known(**successor, control.world(), 4));
    CHECK((*zombie)->warnings().empty());
    CHECK(*list_checkpoints(run) == std::vector<uint64_t>{3, 4});
  });
  CHECK(load(run, 4) == "");
}

namespace {

// A channel of a job that loses its run directory while it reads a checkpoint back.
class TakenOver final : public testing::PassedOn<> {
 public:
  TakenOver(Control& inner, const std::string& run) : PassedOn(inner), run_(run) {}
  Result<std::vector<std::string>> gather(std::string_view name, std::string_view mine,
                                          Deadline deadline) override {
    if (name == "save: read back" && now) {
      std::filesystem::remove(run_ + "/run.lock");
      std::vector<std::string> warnings;
      auto dir = Directory::open(run_);
      if (dir) successor = Ownership::take(*dir, "job 2", warnings);
    }
    return PassedOn::gather(name, mine, deadline);
  }
  bool now = false;
  Result<Ownership> successor = fail("none yet");

 private:
  std::string run_;
};

}  // namespace

TEST_CASE("a zombie that could still commit removes nothing") {
  Temporary dir;
  const std::string run = dir / "run";
  Team(1).run([&](Control& control) {
    TakenOver channel(control, run);
    auto zombie = open_writer(run, channel, {1, 0, 0, true});
    REQUIRE(zombie);
    for (uint64_t step : {1, 2, 3}) REQUIRE(save_known(**zombie, control.world(), step));
    channel.now = true;
    CHECK(save_known(**zombie, control.world(), 4));
    REQUIRE(channel.successor);
    CHECK(*list_checkpoints(run) == std::vector<uint64_t>{2, 3, 4});
    const auto warnings = (*zombie)->warnings();
    REQUIRE(warnings.size() == 1);
    CHECK(warnings[0].find("has been taken over by job 2") != std::string::npos);
  });
}

TEST_CASE("a successor takes away what a zombie was about to commit") {
  Temporary dir;
  std::vector<std::string> warnings;
  auto run = Directory::open_or_make(dir / "run");
  REQUIRE(run);
  auto zombie = Ownership::take(*run, "job 1", warnings);
  REQUIRE(zombie);
  const std::string temporary = temporary_name(7);
  REQUIRE(run->make(temporary));
  REQUIRE(zombie->confirm(*run));  // the last moment at which it can believe that all is well
  REQUIRE(run->remove_file("run.lock"));

  auto successor = Ownership::take(*run, "job 2", warnings);
  REQUIRE(successor);
  CHECK(!run->rename_new(temporary, checkpoint_name(7)));
  auto confirmed = zombie->confirm(*run);
  REQUIRE(!confirmed);
  CHECK(confirmed.error().what == dir / "run" + " has been taken over by job 2");
  CHECK(zombie->lost());
  CHECK(successor->confirm(*run));
  CHECK(successor->confirm(*run));
  CHECK(warnings.empty());
  CHECK(entries(dir / "run") == std::vector<std::string>{".attempt-2.2", "run.lock"});
}

TEST_CASE("leftovers of earlier attempts are removed, nothing else is") {
  Temporary dir;
  REQUIRE(save(dir / "run", 1));
  for (const char* name : {".step-000000002.0123.tmp", ".trash.0123"}) {
    std::filesystem::create_directory(dir / "run/" + name);
    write_file(dir / "run/" + name + "/shard-00000.safetensors", "x");
  }
  write_file(dir / "run/metrics.jsonl", "{}\n");
  write_file(dir / "run/.attempt-x", "{}\n");
  REQUIRE(save(dir / "run", 2));
  CHECK(entries(dir / "run") == std::vector<std::string>{".attempt-2.1", ".attempt-x",
                                                         "metrics.jsonl", "run.lock",
                                                         "step-000000001", "step-000000002"});
}

TEST_CASE("a leftover that cannot be removed is a warning") {
  Temporary dir;
  std::filesystem::create_directories(dir / "run/.step-000000002.0123.tmp/somebody's");
  std::filesystem::create_directory(dir / "run/.step-000000003.0123.tmp");
  Team(2).run([&](Control& control) {
    auto writer = open_writer(dir / "run", control);
    REQUIRE(writer);
    const auto warnings = (*writer)->warnings();
    REQUIRE(warnings.size() == (control.world().rank == 0 ? 1 : 0));
    for (const std::string& w : warnings) CHECK(w.find("somebody's") != std::string::npos);
    CHECK(save_known(**writer, control.world(), 2));
  });
  CHECK(litter(dir / "run").size() == 1);
}

TEST_CASE("a run directory behind a link is refused, and so are links in it") {
  Temporary dir;
  std::filesystem::create_directory(dir / "real");
  std::filesystem::create_directory_symlink(dir / "real", dir / "run");
  for (const char* name : {"run", "run/"}) {
    auto saved = save(dir / name, 1);
    REQUIRE(!saved);
    CHECK(saved.error().what.find("symbolic link") != std::string::npos);
    CHECK(saved.error().exit == exit_code::usage);
  }
  CHECK(entries(dir / "real").empty());

  write_file(dir / "precious", "text");
  std::filesystem::create_directory(dir / "other");
  std::filesystem::create_symlink(dir / "precious", dir / "other/run.lock");
  CHECK(!save(dir / "other", 1));
  CHECK(read_file(dir / "precious") == "text");
}
