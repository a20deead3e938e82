#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
// Stops that are wanted while the end of a step is far away.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <thread>

#include "ckpt/ckpt.h"
#include "ckpt/exchange.h"
#include "train_runs.h"

using namespace trainlaunch;

namespace {

// Steps that nobody sees the end of.
RunConfig endless(RunConfig c) {
  c.train.global_batch = 20'000'000;
  c.train.micro_batch = 1;
  return c;
}

// One that nobody looks for, any more or yet, does not end this process.
void hold_signal() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigprocmask(SIG_BLOCK, &set, nullptr);
}

std::vector<std::string> stopped(const std::vector<int>& per_node, const RunConfig& c, int rank,
                                 const std::string& output = "/dev/null") {
  return as_ranks(
      per_node,
      [&](WorkerControl& control) {
        hold_signal();
        if (control.world().rank == rank) raise(SIGTERM);
        return train(c, control);
      },
      output);
}

}  // namespace

TEST_CASE("a stop that one rank is asked for leaves a long step unfinished on all") {
  struct Case {
    std::vector<int> per_node;
    ShardPolicy shard;
  };
  for (const Case& k : {Case{{1}, ShardPolicy::optimizer}, Case{{2}, ShardPolicy::optimizer},
                        Case{{1, 1}, ShardPolicy::full}}) {
    Temporary dir;
    RunConfig c = small(dir);
    c.parallel.shard = k.shard;
    const int last = k.per_node == std::vector<int>{1} ? 0 : 1;
    for (const std::string& s : stopped(k.per_node, endless(c), last, dir / "out"))
      CHECK(s == "75 stopped early at step 0 with a durable checkpoint");
    CHECK(read_file(dir / "out").find("what came after step 0 is left unfinished") !=
          std::string::npos);
    CHECK(*list_checkpoints(c.run_dir) == std::vector<uint64_t>{0});
  }
}

// Asks its rank twice to stop, with a second between, in the midst of step 2.
class Urging final : public Worker {
 public:
  using Worker::Worker;
  ~Urging() {
    if (second_.joinable()) second_.join();
  }
  void progress(uint64_t step, std::string_view phase) noexcept override {
    if (step != 1 || phase != "train" || second_.joinable()) return;
    kill(getpid(), SIGTERM);
    second_ = std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1100));
      kill(getpid(), SIGTERM);
    });
  }

 private:
  std::thread second_;
};

// On a machine so fast that step 2 ends before the second signal, it is a stop like any other.
TEST_CASE("a step that was left unfinished has changed nothing") {
  Temporary dir;
  RunConfig c = small(dir, "whole");
  c.train.global_batch = 20'000;
  c.train.micro_batch = 1;
  c.train.steps = 2;
  REQUIRE(train_as({2}, c) == "");
  const std::vector<double> whole = losses(c);

  c.run_dir = dir / "interrupted";
  const auto all = trainlaunch::testing::run_ranks(
      {{2}}, [&](Control& control, const std::vector<int>& sockets) -> std::string {
        (void)!freopen("/dev/null", "w", stdout);
        hold_signal();
        Urging worker(control, sockets);
        const Status s = train(c, worker);
        return s ? "" : std::to_string(s.error().exit) + " " + s.error().what;
      });
  if (all[0] != "") {
    CHECK(all[0] == "75 stopped early at step 1 with a durable checkpoint");
    CHECK(*list_checkpoints(c.run_dir) == std::vector<uint64_t>{1});
  }
  CHECK(all[1] == all[0]);
  REQUIRE(train_as({2}, c) == "");
  CHECK(losses(c) == whole);
}

TEST_CASE("an imported checkpoint of step 0 is one") {
  Temporary dir;
  RunConfig c = small(dir, "first");
  c.train.steps = 1;
  REQUIRE(train_as({1}, c) == "");
  auto first = Directory::open(c.run_dir + "/step-000000001");
  REQUIRE(first);
  REQUIRE(export_weights(*first, dir / "weights", false, {}));
  c.run_dir = dir / "run";
  REQUIRE(import_weights(dir / "weights", c.run_dir, std::nullopt, {}));
  c.optim.lr = 1e30;
  c.optim.clip = 0;
  c.train.steps = 50;
  const std::string said = train_as({1}, c);
  CHECK_MESSAGE(said.find("the checkpoint of step 0 is the last good one") != std::string::npos,
                said);
}

TEST_CASE("threads that cannot be had are an error that says so") {
  Temporary dir;
  RunConfig c = small(dir);
  c.train.threads = 4;
  std::filesystem::permissions(dir.path(), std::filesystem::perms::all);
  const auto all = as_ranks({1}, [&](WorkerControl& control) -> Status {
    if (geteuid() == 0 && setresuid(54321, 54321, 54321) != 0) return fail("setresuid");
    const rlimit one{1, 1};
    setrlimit(RLIMIT_NPROC, &one);
    return train(c, control);
  });
  CHECK_MESSAGE(all[0].starts_with("1 no more than 1 of 4 threads can be had: "), all[0]);
}
