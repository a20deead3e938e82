// What a run does about losses and gradients that have gone wrong.
#include <doctest/doctest.h>

#include <cmath>

#include "ckpt/ckpt.h"
#include "data/data.h"
#include "train/guard.h"
#include "train_runs.h"

using namespace trainlaunch;
using nlohmann::json;

namespace {

constexpr int64_t poisoned_step = 60;

json manifest(const RunConfig& c, int step) {
  char name[32];
  std::snprintf(name, sizeof name, "/step-%09d", step);
  return json::parse(read_file(c.run_dir + name + "/MANIFEST.json"));
}

// A run in whose text everything that one step reads is of bytes that occur nowhere else.
RunConfig poisoned(const Temporary& dir, const std::string& name) {
  RunConfig c = small(dir, name);
  c.guard.window = 20;
  c.train.steps = 80;
  const auto batch = static_cast<uint64_t>(c.train.global_batch);
  const auto context = static_cast<size_t>(c.model.context);
  auto text = Text::open(c.data.path, c.model.context);
  REQUIRE(text);
  std::string bytes = read_file(c.data.path);
  for (uint64_t g = (poisoned_step - 1) * batch; g < poisoned_step * batch; ++g) {
    const uint64_t sample = order(c.train.seed, g, (*text)->training_samples());
    for (size_t i = 0; i < context; ++i)
      bytes[sample * context + i] = static_cast<char>(200 + (sample + i * i) % 50);
  }
  c.data.path = dir / "poisoned";
  write_file(c.data.path, bytes);
  return c;
}

}  // namespace

TEST_CASE("a value is a spike from so many deviations above the mean") {
  Window w(2, 7);
  CHECK(std::isinf(w.limit()));
  w.add(1);
  CHECK(std::isinf(w.limit()));
  w.add(3);
  CHECK(w.limit() == 9);  // mean 2, deviation 1
  w.add(100);             // goes in as 9, and pushes out the 1
  CHECK(w.values() == std::vector<double>{3, 9});
  CHECK(w.limit() == 6 + 7 * 3);

  Window flat(3, 7);
  for (int i = 0; i < 3; ++i) flat.add(10);
  CHECK(flat.limit() == doctest::Approx(10.7));  // a hundredth of the mean is the least deviation
  Window off(3, 0);
  for (int i = 0; i < 9; ++i) off.add(i);
  CHECK(std::isinf(off.limit()));
  flat.restore({1, 2, 3, 4, 5});
  CHECK(flat.values() == std::vector<double>{3, 4, 5});
}

TEST_CASE("what is not finite is skipped, gone back from, or the end") {
  GuardConfig c;
  const double nan = std::nan("");
  for (const auto& [wish, action, without] : {std::tuple{OnNan::skip, Action::skip, Action::skip},
                                              {OnNan::roll_back, Action::roll_back, Action::skip},
                                              {OnNan::stop, Action::stop, Action::stop}}) {
    c.nan = wish;
    StepGuard g(c);
    CHECK(g.judge(1, 1, true).action == Action::none);
    CHECK(g.judge(nan, 1, true).action == action);
    CHECK(g.judge(1, INFINITY, false).action == without);
    CHECK(g.norm_limit(nan) < 0);
    CHECK(g.skipped() == 2);
    for (int i = 0; i < 8; ++i) CHECK_FALSE((g.hopeless(), g.judge(nan, nan, true).finite));
    CHECK(g.hopeless());
    CHECK(g.judge(1, 1, true).finite);
    CHECK(g.skipped() == 0);
  }
}

TEST_CASE("a run does not go back to one checkpoint for ever") {
  GuardConfig c;
  c.rollbacks = 2;
  StepGuard g(c);
  CHECK(g.older_than(60) == 0);
  g.rolled_back(60, 50, {});
  CHECK(g.may_roll_back());
  CHECK(g.older_than(61) == 0);   // it came past the place
  CHECK(g.older_than(55) == 50);  // it did not: what it came from is no good
  g.rolled_back(55, 40, {});
  CHECK_FALSE(g.may_roll_back());
  CHECK(g.older_than(60) == 40);
  // All of it is in the next checkpoint.
  StepGuard later(c);
  later.restore(g.state());
  CHECK(later.state() == g.state());
  CHECK(later.older_than(60) == 40);
}

TEST_CASE("a spike that is skipped changes nothing but the place in the text") {
  Temporary dir;
  RunConfig c = poisoned(dir, "run");
  c.guard.spike = OnSpike::skip;
  c.train.steps = poisoned_step;
  c.checkpoint.every = poisoned_step - 1;
  REQUIRE(train_as({2}, c, dir / "out") == "");
  const json before = manifest(c, poisoned_step - 1), after = manifest(c, poisoned_step);
  CHECK(after["files"] == before["files"]);  // weights and the optimizer's state
  CHECK(after["state"]["updates"] == before["state"]["updates"]);
  CHECK(after["state"]["samples"].get<int64_t>() == poisoned_step * c.train.global_batch);
  CHECK(after["state"]["guard"]["skipped"].get<int>() == 1);
  const std::string out = read_file(dir / "out");
  CHECK(out.find("step 60: loss ") != std::string::npos);
  CHECK(out.find("is a spike: the last 20 steps had ") != std::string::npos);
  CHECK(out.find("; weights are unchanged\n") != std::string::npos);

  SUBCASE("and one that is only said is learnt from") {
    c.run_dir = dir / "other";
    c.guard.spike = OnSpike::say;
    REQUIRE(train_as({2}, c, dir / "out") == "");
    CHECK(manifest(c, poisoned_step - 1)["files"] == before["files"]);
    CHECK(manifest(c, poisoned_step)["files"] != after["files"]);
    CHECK(read_file(dir / "out").find("is a spike") != std::string::npos);
    CHECK(read_file(dir / "out").find("unchanged") == std::string::npos);
  }
}

TEST_CASE("after a spike a run goes back to a checkpoint and on with other data") {
  for (const ShardPolicy shard :
       {ShardPolicy::none, ShardPolicy::optimizer, ShardPolicy::gradients, ShardPolicy::full}) {
    Temporary dir;
    RunConfig c = poisoned(dir, "run");
    c.parallel.shard = shard;
    c.guard.spike = OnSpike::roll_back;
    c.checkpoint.every = 25;
    c.data.ledger = true;
    REQUIRE(train_as({2}, c, dir / "out") == "");
    CHECK(
        read_file(dir / "out")
            .find(
                "back to " + c.run_dir +
                "/step-000000050, and on with sample 480: the batches of steps 51 to 60 are passed "
                "over (rollback 1 of at most 10)\n") != std::string::npos);
    const json end = manifest(c, 80);
    CHECK(end["state"]["samples"].get<int>() == 480 + 30 * 8);
    CHECK(end["state"]["updates"].get<int>() == 80);
    CHECK(end["state"]["guard"]["rollbacks"].get<int>() == 1);
    const auto got = losses(c);
    CHECK(got.size() == 80);  // each step once
    CHECK(*std::max_element(got.begin() + 50, got.end()) < got[49] + 1);
    std::istringstream ledger(read_file(c.run_dir + "/ledger-0.jsonl"));
    for (std::string line; std::getline(ledger, line);) {
      const json j = json::parse(line);
      if (j["step"] == 50) CHECK(j["first"].get<int>() == 392);
      if (j["step"] == 51) CHECK(j["first"].get<int>() == 480);
    }

    // One that ends after that goes on to the same bits.
    std::filesystem::remove_all(c.run_dir + "/step-000000080");
    REQUIRE(train_as({2}, c, dir / "out") == "");
    CHECK(manifest(c, 80)["files"] == end["files"]);
    CHECK(manifest(c, 80)["state"] == end["state"]);
    CHECK(losses(c) == got);
  }
}

TEST_CASE("a run goes back to what the nodes themselves have, if it is newer") {
  Temporary dir;
  RunConfig c = poisoned(dir, "run");
  c.guard.spike = OnSpike::roll_back;
  c.checkpoint.every = 25;
  c.checkpoint.local_every = 5;
  c.checkpoint.local_dir = dir / "local";
  REQUIRE(train_as({1, 1}, c, dir / "out") == "");
  const std::string out = read_file(dir / "out");
  CHECK(out.find("back to " + c.checkpoint.local_dir) != std::string::npos);
  CHECK(out.find("step-000000055, and on with sample 480: ") != std::string::npos);
  CHECK(manifest(c, 80)["state"]["samples"].get<int>() == 480 + 25 * 8);
}

TEST_CASE("a run that goes wrong again and again ends") {
  Temporary dir;
  RunConfig c = small(dir);
  c.guard.window = 20;
  c.train.steps = 40;
  c.checkpoint.every = 10;
  REQUIRE(train_as({2}, c) == "");
  c.train.steps = 80;
  c.optim.lr = 1e6;  // nothing survives this
  c.optim.clip = 0;
  c.guard.spike = OnSpike::roll_back;
  c.guard.nan = OnNan::roll_back;
  c.guard.rollbacks = 3;
  const std::string said = train_as({2}, c, dir / "out");
  CHECK_MESSAGE(said.starts_with("93 step "), said);
  CHECK(said.find("the run has gone back 3 times already") != std::string::npos);
  const std::string out = read_file(dir / "out");
  // Each time further: the newest one was no good.
  CHECK(out.find("/step-000000040, and on with") != std::string::npos);
  CHECK(out.find("/step-000000030, and on with") != std::string::npos);
  CHECK(out.find("/step-000000020, and on with") != std::string::npos);
}

TEST_CASE("what is not finite ends a run that says so") {
  Temporary dir;
  RunConfig c = small(dir);
  c.optim.lr = 1e30;
  c.optim.clip = 0;
  c.guard.nan = OnNan::stop;
  const std::string said = train_as({2}, c);
  CHECK_MESSAGE(said.starts_with("93 step "), said);
  CHECK(said.find("has not been finite for 1 step;") != std::string::npos);
}
