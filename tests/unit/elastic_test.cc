// Runs whose number of ranks changes: what stays the same to the last bit, what within rounding,
// and that no sample is used twice or left out, whatever is killed.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "ckpt/ckpt.h"
#include "train_runs.h"

using namespace trainlaunch;
using nlohmann::json;

namespace {

RunConfig canonical(const Temporary& dir, const std::string& name, int micro_batches = 4) {
  RunConfig c = small(dir, name);
  c.deterministic = Deterministic::canonical;
  c.train.micro_batches = micro_batches;
  c.train.steps = 8;
  c.train.eval_every = 4;
  c.train.eval_batches = 3;
  c.optim.clip = 0.5;  // below the norms of the first steps
  return c;
}

// Everything that training leaves behind: weights, m and v of each tensor, by name and slot.
using Tensors = std::map<std::string, std::vector<float>>;

Tensors tensors(const RunConfig& c, uint64_t step) {
  auto reader = Reader::open(c.run_dir, step);
  REQUIRE_MESSAGE(reader, (reader ? "" : reader.error().what));
  const auto device = make_host_device();
  const auto stream = std::move(*device->stream());
  Tensors all;
  std::vector<Piece> pieces;
  for (const auto& [name, size] : (*reader)->tensors()) {
    for (const char* slot : {"weight", "m", "v"}) {
      auto& x = all[name + "/" + slot];
      x.resize(static_cast<size_t>(size));
      pieces.push_back({name, slot, 0, size, View(x.data(), DType::f32, {size})});
    }
  }
  const auto read = (*reader)->read(pieces, *device, *stream);
  REQUIRE_MESSAGE(read, (read ? "" : read.error().what));
  return all;
}

// Losses, validation losses and norms, as they were printed to the record: every bit of them.
std::vector<json> history(const RunConfig& c) {
  std::vector<json> all = records(c);
  for (json& j : all)
    for (const char* speed : {"tokens_per_second", "mfu"}) j.erase(speed);
  return all;
}

bool same(const RunConfig& a, const RunConfig& b, uint64_t step) {
  const bool told = history(a) == history(b), kept = tensors(a, step) == tensors(b, step);
  CHECK(told);
  CHECK(kept);
  return told && kept;
}

using Ranks = std::vector<int>;

}  // namespace

TEST_CASE("canonical: the same bits on any number of ranks, nodes and threads, however sharded") {
  Temporary dir;
  const RunConfig alone = canonical(dir, "alone");
  REQUIRE(train_as({1}, alone, dir / "out") == "");
  CHECK(records(alone)[1]["grad_norm"] > 0.5);  // clipped
  const std::string out = read_file(dir / "out");
  CHECK(out.find("in micro-batches of 2, summed as on any number of ranks") != std::string::npos);
  int n = 0;
  for (const ShardPolicy shard : {ShardPolicy::none, ShardPolicy::optimizer}) {
    for (const Ranks& per_node : std::vector<Ranks>{{2}, {4}, {1, 1}, {2, 2}}) {
      RunConfig c = canonical(dir, "run" + std::to_string(n++));
      c.parallel.shard = shard;
      c.train.threads = per_node == Ranks{2} ? 2 : 1;
      c.parallel.bucket_mib = n % 2 == 0 ? 0 : 0.05;  // measured, or another
      REQUIRE(train_as(per_node, c) == "");
      INFO("run ", n - 1);
      CHECK(same(c, alone, 8));
    }
  }
  // Into how many parts the batch is cut does matter: it says in which order to add.
  const RunConfig other = canonical(dir, "other", 8);
  REQUIRE(train_as({2}, other) == "");
  CHECK(tensors(other, 8) != tensors(alone, 8));
}

TEST_CASE("canonical: saved on N ranks, resumed on M: the bits of the uninterrupted run") {
  Temporary dir;
  RunConfig whole = canonical(dir, "whole");
  REQUIRE(train_as({1}, whole) == "");
  for (const int before : {1, 2, 4}) {
    RunConfig first = canonical(dir, "saved on " + std::to_string(before));
    first.checkpoint.every = 4;
    first.parallel.shard = before == 2 ? ShardPolicy::none : ShardPolicy::optimizer;
    REQUIRE(train_as({before}, first) == "");
    std::filesystem::remove_all(first.run_dir + "/step-000000008");
    for (const int after : {1, 2, 4}) {
      INFO("saved on ", before, " ranks, resumed on ", after);
      RunConfig second = first;
      second.run_dir += ", resumed on " + std::to_string(after);
      std::filesystem::copy(first.run_dir, second.run_dir,
                            std::filesystem::copy_options::recursive);
      REQUIRE(train_as({after}, second, dir / "out") == "");
      CHECK(read_file(dir / "out").find("/step-000000004") != std::string::npos);
      CHECK(same(second, whole, 8));
    }
  }
}

TEST_CASE("without canonical, another number of ranks gives the same within rounding") {
  Temporary dir;
  RunConfig whole = small(dir, "whole");
  whole.checkpoint.every = 6;
  REQUIRE(train_as({1}, whole) == "");
  const auto expected = losses(whole);
  for (const int after : {2, 3, 4}) {
    RunConfig parts = small(dir, "parts" + std::to_string(after));
    std::filesystem::copy(whole.run_dir, parts.run_dir, std::filesystem::copy_options::recursive);
    std::filesystem::remove_all(parts.run_dir + "/step-000000012");
    REQUIRE(train_as({after}, parts) == "");
    const auto got = losses(parts);
    REQUIRE(got.size() == expected.size());
    // The first step has the same weights. Sums over the width run in another order at most: k
    // terms, each rounded to 2^-24 of the sum, in a handful of products one after the other.
    const double epsilon = std::ldexp(1.0, -24), k = 4.0 * whole.model.width;
    CHECK(std::abs(got[6] / expected[6] - 1) < 8 * k * epsilon);
    // Adam divides an element's gradient by its own size, so that its rounding, relative to the
    // largest term of its sum, may move it by a small part of a learning rate in each step.
    for (size_t i = 7; i < got.size(); ++i) CHECK(std::abs(got[i] / expected[i] - 1) < 1e-4);
  }
}

namespace {

struct Form {
  ShardPolicy shard;
  Ranks per_node;
};

}  // namespace

// Without canonical, sums over ranks and micro-batches are taken in another order: see the case
// above for what that may move.
TEST_CASE(
    "each form gives one rank's losses, with several micro-batches and ranks that have none") {
  Temporary dir;
  const auto config = [&](const std::string& name) {
    RunConfig c = small(dir, name);
    c.train.micro_batch = 3;  // of 8: three micro-batches
    c.train.eval_every = 6;
    c.train.eval_batches = 1;
    return c;
  };
  const RunConfig alone = config("alone");
  REQUIRE(train_as({1}, alone) == "");
  const auto expected = losses(alone);
  REQUIRE(expected.size() == 12);
  int n = 0;
  for (const ShardPolicy shard : {ShardPolicy::gradients, ShardPolicy::full}) {
    for (const Ranks& per_node : std::vector<Ranks>{{1}, {2}, {4}, {2, 2}, {1, 3}}) {
      RunConfig c = config("run" + std::to_string(n++));
      c.parallel.shard = shard;
      if (per_node.size() == 2) c.parallel.bucket_mib = 0;
      REQUIRE(train_as(per_node, c) == "");
      INFO(name_of(shard), ", ", per_node.front(), " and more of ", per_node.size(), " nodes");
      const auto got = losses(c);
      REQUIRE(got.size() == expected.size());
      for (size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] / expected[i] - 1) < 1e-4);
      if (per_node != Ranks{1, 3}) continue;
      // Again: the same bits, whatever buckets were found to be best.
      RunConfig again = config("run" + std::to_string(n++));
      again.parallel.shard = shard;
      REQUIRE(train_as(per_node, again) == "");
      CHECK(same(again, c, 12));
    }
  }
}

TEST_CASE("a checkpoint of any form on any ranks is resumed in any other on others") {
  Temporary dir;
  RunConfig whole = small(dir, "whole");
  whole.checkpoint.every = 6;
  REQUIRE(train_as({1}, whole) == "");
  const auto expected = losses(whole);
  const std::vector<std::pair<Form, Form>> changes = {
      {{ShardPolicy::full, {2, 2}}, {ShardPolicy::none, {3}}},
      {{ShardPolicy::none, {3}}, {ShardPolicy::full, {2}}},
      {{ShardPolicy::gradients, {1, 1}}, {ShardPolicy::optimizer, {1}}},
      {{ShardPolicy::optimizer, {2}}, {ShardPolicy::gradients, {1, 3}}},
      {{ShardPolicy::full, {3}}, {ShardPolicy::full, {1}}},
      {{ShardPolicy::gradients, {4}}, {ShardPolicy::gradients, {4}}}};
  int n = 0;
  for (const auto& [before, after] : changes) {
    RunConfig c = small(dir, "run" + std::to_string(n++));
    c.checkpoint.every = 6;
    c.parallel.shard = before.shard;
    INFO(name_of(before.shard), " to ", name_of(after.shard));
    REQUIRE(train_as(before.per_node, c) == "");
    const Tensors uninterrupted = tensors(c, 12);
    std::filesystem::remove_all(c.run_dir + "/step-000000012");
    c.parallel.shard = after.shard;
    REQUIRE(train_as(after.per_node, c, dir / "out") == "");
    CHECK(read_file(dir / "out").find("/step-000000006") != std::string::npos);
    const auto got = losses(c);
    REQUIRE(got.size() == expected.size());
    for (size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] / expected[i] - 1) < 1e-4);
    if (before.shard == after.shard && before.per_node == after.per_node)
      CHECK((tensors(c, 12) == uninterrupted));
  }
}

TEST_CASE("bf16 learns like f32, alike in every form, and resumes to the same bits") {
  Temporary dir;
  const auto config = [&](const std::string& name, Rounding rounding) {
    RunConfig c = small(dir, name);
    c.precision = {DType::bf16, DType::f32, rounding};
    c.checkpoint.every = 6;
    return c;
  };
  RunConfig exact = small(dir, "f32");
  REQUIRE(train_as({1}, exact) == "");
  const auto f32 = losses(exact);
  int n = 0;
  for (const Rounding rounding : {Rounding::nearest, Rounding::stochastic}) {
    for (const ShardPolicy shard :
         {ShardPolicy::none, ShardPolicy::optimizer, ShardPolicy::gradients, ShardPolicy::full}) {
      RunConfig c = config("run" + std::to_string(n++), rounding);
      c.parallel.shard = shard;
      REQUIRE(train_as({2, 1}, c) == "");
      INFO(name_of(shard), rounding == Rounding::stochastic ? ", stochastic" : ", nearest");
      const auto got = losses(c);
      REQUIRE(got.size() == f32.size());
      // A number of 8 significant bits is off by 2^-9 of itself on average; losses are means of
      // many of them.
      for (size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] / f32[i] - 1) < 2e-2);
      const Tensors uninterrupted = tensors(c, 12);
      std::filesystem::remove_all(c.run_dir + "/step-000000012");
      REQUIRE(train_as({2, 1}, c) == "");
      CHECK((tensors(c, 12) == uninterrupted));
    }
  }
}

TEST_CASE("canonical in bf16: the same bits on any number of ranks") {
  Temporary dir;
  const auto config = [&](const std::string& name) {
    RunConfig c = canonical(dir, name);
    c.precision.compute = DType::bf16;
    c.precision.rounding = Rounding::stochastic;
    return c;
  };
  const RunConfig alone = config("alone");
  REQUIRE(train_as({1}, alone) == "");
  for (const ShardPolicy shard : {ShardPolicy::none, ShardPolicy::optimizer}) {
    RunConfig c = config(name_of(shard));
    c.parallel.shard = shard;
    REQUIRE(train_as({2, 2}, c) == "");
    CHECK(same(c, alone, 8));
  }
}

TEST_CASE("bf16 between nodes learns like f32") {
  Temporary dir;
  RunConfig exact = small(dir, "f32");
  REQUIRE(train_as({1, 1}, exact) == "");
  const auto f32 = losses(exact);
  for (const ShardPolicy shard : {ShardPolicy::optimizer, ShardPolicy::full}) {
    RunConfig c = small(dir, name_of(shard));
    c.parallel.shard = shard;
    c.precision.wire = DType::bf16;
    REQUIRE(train_as({1, 1}, c) == "");
    const auto got = losses(c);
    REQUIRE(got.size() == f32.size());
    CHECK(got != f32);
    // Each of two parts of a gradient is off by 2^-8 of itself at most.
    for (size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] / f32[i] - 1) < 1e-2);
  }
}

TEST_CASE("canonical: each branch of the rank's tree has a buffer, and the start says so") {
  Temporary dir;
  RunConfig c = canonical(dir, "run");
  c.model.width = 64;
  c.train.steps = 1;
  const auto gradients = [&](const Ranks& ranks) {
    c.run_dir = dir / ("run on " + std::to_string(ranks[0]));
    REQUIRE(train_as(ranks, c, dir / "out") == "");
    const std::string out = read_file(dir / "out"), before = ", gradients ";
    return std::stod(out.substr(out.find(before) + before.size()));
  };
  const double one = gradients({4});
  CHECK(gradients({2}) == doctest::Approx(2 * one).epsilon(0.05 / one));
  CHECK(gradients({1}) == doctest::Approx(3 * one).epsilon(0.1 / one));
}

TEST_CASE("canonical: what cannot be is one line, before anything is made") {
  Temporary dir;
  const auto refused = [&](const Ranks& ranks, const char* what, auto change) {
    RunConfig c = canonical(dir, "refused");
    change(c);
    const std::string said = train_as(ranks, c);
    INFO(said);
    CHECK(said.starts_with("2 "));
    CHECK(said.find(what) != std::string::npos);
    CHECK(said.find('\n') == std::string::npos);
    CHECK_FALSE(std::filesystem::exists(c.run_dir));
  };
  const auto as_it_is = [](RunConfig&) {};
  refused({3}, "runs on 1, 2, 4, ... up to 4 ranks, not on 3", as_it_is);
  refused({8}, "not on 8", [](RunConfig& c) { c.train.global_batch = 16; });
  refused({1}, "needs train.micro-batches", [](RunConfig& c) { c.train.micro_batches = 0; });
  refused({2}, "train.micro-batches=6 is no power of two",
          [](RunConfig& c) { c.train.global_batch = 12, c.train.micro_batches = 6; });
  refused({2}, "does not divide train.global-batch=10",
          [](RunConfig& c) { c.train.global_batch = 10; });
  refused({2}, "train.micro-batch=4, but", [](RunConfig& c) { c.train.micro_batch = 4; });
  refused({2}, "parallel.shard=gradients adds up in an order that depends on the ranks",
          [](RunConfig& c) { c.parallel.shard = ShardPolicy::gradients; });
  refused({2}, "parallel.shard=full adds up in an order that depends on the ranks",
          [](RunConfig& c) { c.parallel.shard = ShardPolicy::full; });
  refused({2}, "precision.wire=bf16 rounds what travels between nodes",
          [](RunConfig& c) { c.precision.wire = DType::bf16; });
  refused({2}, "says nothing without deterministic=canonical",
          [](RunConfig& c) { c.deterministic = Deterministic::same_ranks; });
}

TEST_CASE("canonical: a run that promised its bits does not go on otherwise") {
  Temporary dir;
  RunConfig c = canonical(dir, "run");
  c.train.steps = 1;
  REQUIRE(train_as({2}, c) == "");
  c.train.steps = 2;
  RunConfig other = c;
  other.train.micro_batches = 8;
  CHECK(train_as({2}, other).starts_with("2 train.micro-batches is 8, but "));
  other.deterministic = Deterministic::same_ranks;
  other.train.micro_batches = 0;
  CHECK(train_as({2}, other).starts_with("2 deterministic is same-ranks, but "));
  CHECK(train_as({4}, c) == "");
}

namespace {

// A rank that is killed when it comes to this step and phase, whether or not a checkpoint is being
// written.
struct Kill {
  int rank;
  uint64_t step;
  std::string phase;
};

class Doomed final : public Worker {
 public:
  Doomed(Control& control, const std::vector<int>& sockets, const Kill& kill)
      : Worker(control, sockets), kill_(kill) {}
  void progress(uint64_t step, std::string_view phase) noexcept override {
    if (world().rank == kill_.rank && step == kill_.step && phase.starts_with(kill_.phase))
      raise(SIGKILL);
  }

 private:
  const Kill& kill_;
};

// Lines of all ranks' ledgers: number of a sample in the run's order -> its index.
std::map<uint64_t, uint64_t> ledger(const RunConfig& c, uint64_t steps) {
  std::map<uint64_t, uint64_t> used;
  for (int rank = 0;; ++rank) {
    const std::string path = c.run_dir + "/ledger-" + std::to_string(rank) + ".jsonl";
    if (!std::filesystem::exists(path)) break;
    std::istringstream in(read_file(path));
    for (std::string line; std::getline(in, line);) {
      const json j = json::parse(line);
      const uint64_t step = j["step"], first = j["first"];
      CHECK(step <= steps);
      for (uint64_t i = 0; i < j["samples"].size(); ++i) {
        CHECK((first + i) / static_cast<uint64_t>(c.train.global_batch) == step - 1);
        INFO("sample ", first + i);
        CHECK(used.emplace(first + i, j["samples"][i]).second);
      }
    }
  }
  return used;
}

}  // namespace

TEST_CASE(
    "each sample is used once an epoch, whatever is killed and however many ranks there are") {
  for (const bool is_canonical : {false, true}) {
    Temporary dir;
    RunConfig c = is_canonical ? canonical(dir, "run") : small(dir);
    write_file(dir / "short", words(800));  // 44 samples: an epoch is no whole number of steps
    c.data.path = dir / "short";
    c.data.ledger = true;
    c.train.steps = 20;
    c.train.eval_every = 0;
    c.train.deadline = 5;
    c.checkpoint.every = 3;
    RunConfig whole = c;
    whole.run_dir = dir / "whole";
    REQUIRE(train_as({1}, whole) == "");

    // Each job is killed: ranks by node, and where. The last one comes to the end.
    const std::vector<std::pair<Ranks, Kill>> jobs = {
        {{2}, {1, 2, "train"}},    // before there is a checkpoint
        {{4}, {0, 4, "reduce"}},   // after one
        {{1}, {0, 7, "update"}},   //
        {{1, 1}, {1, 9, "save"}},  // of step 9, which so does not come to be
        {{4}, {3, 10, "train"}},   // while step 9 is written, or after that
        {{2, 2}, {2, 12, "save"}}, {{2}, {0, 18, "save"}}, {{4}, {-1, 0, ""}}};
    for (const auto& [ranks, kill] : jobs) {
      const auto all = trainlaunch::testing::run_ranks(
          {ranks}, [&](Control& control, const std::vector<int>& sockets) -> std::string {
            (void)!freopen("/dev/null", "w", stdout);
            Doomed worker(control, sockets, kill);
            auto s = train(c, worker);
            return s ? "" : s.error().what;
          });
      if (kill.rank >= 0) CHECK(all[static_cast<size_t>(kill.rank)] == "signal 9");
    }

    const auto used = ledger(c, 20), expected = ledger(whole, 20);
    REQUIRE(used.size() == 20 * static_cast<size_t>(c.train.global_batch));
    CHECK(used.rbegin()->first == used.size() - 1);
    CHECK((used == expected));
    std::map<uint64_t, std::set<uint64_t>> epochs;
    constexpr uint64_t samples = 44;
    for (const auto& [g, index] : used) {
      CHECK(index < samples);
      INFO("index ", index);
      CHECK(epochs[g / samples].insert(index).second);
    }
    CHECK(epochs.size() == 4);
    for (uint64_t e = 0; e < 3; ++e) CHECK(epochs[e].size() == samples);
    if (is_canonical) CHECK(same(c, whole, 20));
  }
}
