#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "train/train.h"

#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "ckpt/ckpt.h"
#include "data/data.h"
#include "train/engine.h"
#include "train/metrics.h"
#include "train/sample.h"
#include "train_runs.h"

using namespace trainlaunch;
using nlohmann::json;

namespace {

// A text in which each byte says which one follows.
std::string pattern(size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += "abcdefghijklmnopqrstuvw\n";
  return text.substr(0, bytes);
}

// Everything of a checkpoint's tensors: the digests of its shards.
json weights(const RunConfig& c, const std::string& step) {
  return json::parse(read_file(c.run_dir + "/step-" + step + "/MANIFEST.json"))["files"];
}

}  // namespace

TEST_CASE("an untrained model is as good as a guess, a trained one knows its text") {
  Temporary dir;
  RunConfig c = small(dir);
  write_file(dir / "pattern", pattern(20000));
  c.data.path = dir / "pattern";
  c.model.context = 25;  // samples begin at every place of the pattern
  c.train.steps = 150;
  c.train.eval_every = 50;
  c.optim.weight_decay = 0;
  REQUIRE(train_as({1}, c, dir / "out") == "");
  std::map<uint64_t, double> validation;
  for (const json& j : records(c))
    if (j.contains("validation_loss")) validation[j["step"]] = j["validation_loss"];
  REQUIRE(validation.size() == 4);
  CHECK(validation[0] == doctest::Approx(std::log(256)).epsilon(0.02));
  CHECK(validation[150] < 0.2);
  CHECK(losses(c).size() == 150);

  const std::string out = read_file(dir / "out");
  for (const char* part :
       {"world       1 rank on 1 node", "parameters", "memory ", "step 10/150  loss ", "tokens/s",
        "left ", "step 50/150  validation loss ", "checkpoint: step 150 durable, "})
    CHECK_MESSAGE(out.find(part) != std::string::npos, part);

  SUBCASE("and continues it") {
    GenerateOptions options;
    options.prompt = "abcdef";
    options.tokens = 60;
    options.temperature = 0;
    const auto all = as_ranks({1}, [&](WorkerControl&) -> Status {
      std::string text;
      auto s = generate_from_run(c.run_dir, std::nullopt, options, [&](std::string_view piece) {
        text += piece;
        return true;
      });
      if (!s) return s;
      return fail(text);
    });
    CHECK(all[0] == "1 " + pattern(66));
  }
  SUBCASE("and its curve can be drawn") {
    setenv("LC_ALL", "C", 1);
    auto text = report(c.run_dir, 80);
    REQUIRE(text);
    CHECK(text->find("after 150 steps: training loss ") != std::string::npos);
    CHECK(std::all_of(text->begin(), text->end(),
                      [](char ch) { return ch == '\n' || (ch >= ' ' && ch <= '~'); }));
    const std::string svg = read_file(c.run_dir + "/loss.svg");
    CHECK(svg.starts_with("<svg "));
    CHECK(svg.ends_with("</svg>\n"));
  }
}

TEST_CASE("any number of ranks gives the same losses") {
  Temporary dir;
  RunConfig alone = small(dir, "alone");
  REQUIRE(train_as({1}, alone) == "");
  const auto expected = losses(alone);
  REQUIRE(expected.size() == 12);
  CHECK(expected.back() < expected.front() - 0.5);
  int n = 0;
  for (ShardPolicy shard : {ShardPolicy::none, ShardPolicy::optimizer}) {
    for (const auto& per_node : std::vector<std::vector<int>>{{2}, {3}, {4}, {1, 1}, {2, 2}}) {
      RunConfig c = small(dir, "run" + std::to_string(n++));
      c.parallel.shard = shard;
      REQUIRE(train_as(per_node, c) == "");
      const auto got = losses(c);
      REQUIRE(got.size() == expected.size());
      for (size_t i = 0; i < got.size(); ++i)
        CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-4));
    }
  }
}

TEST_CASE("ranks without a micro-batch and uneven ones join in") {
  Temporary dir;
  std::vector<std::vector<double>> all;
  for (auto [ranks, micro] : {std::pair{1, 0}, {1, 3}, {4, 8}, {3, 3}}) {
    RunConfig c = small(dir, "run" + std::to_string(all.size()));
    c.train.steps = 4;
    c.train.micro_batch = micro;
    c.train.eval_every = 2;
    c.train.eval_batches = 1;
    REQUIRE(train_as({ranks}, c) == "");
    all.emplace_back();
    for (const json& j : records(c))
      all.back().push_back(j.contains("loss") ? j["loss"] : j["validation_loss"]);
    REQUIRE(all.back().size() == 7);
    for (size_t i = 0; i < 7; ++i)
      CHECK(all.back()[i] == doctest::Approx(all.front()[i]).epsilon(1e-4));
  }
}

TEST_CASE("a run that was interrupted ends with the same bits") {
  for (ShardPolicy shard : {ShardPolicy::none, ShardPolicy::optimizer}) {
    Temporary dir;
    RunConfig whole = small(dir, "whole"), parts = small(dir, "parts");
    whole.parallel.shard = parts.parallel.shard = shard;
    whole.checkpoint.every = parts.checkpoint.every = 4;
    REQUIRE(train_as({2}, whole) == "");
    RunConfig first = parts;
    REQUIRE(train_as({2}, first) == "");
    // As if killed between 8 and 12: the last checkpoint is gone, the record has gone further.
    std::filesystem::remove_all(parts.run_dir + "/step-000000012");
    const std::string record = read_file(parts.run_dir + "/metrics.jsonl");
    write_file(parts.run_dir + "/metrics.jsonl", record + "{\"step\": 13, \"lo");
    REQUIRE(train_as({2}, parts, dir / "out") == "");
    CHECK(read_file(dir / "out").find("continued from " + parts.run_dir + "/step-000000008") !=
          std::string::npos);
    CHECK(weights(parts, "000000012") == weights(whole, "000000012"));
    CHECK(weights(parts, "000000012") != weights(parts, "000000008"));
    CHECK(losses(parts) == losses(whole));
  }
}

TEST_CASE("a run goes on with another number of ranks") {
  Temporary dir;
  RunConfig whole = small(dir, "whole"), parts = small(dir, "parts");
  parts.checkpoint.every = 6;
  REQUIRE(train_as({1}, whole) == "");
  REQUIRE(train_as({1, 2}, parts) == "");
  std::filesystem::remove_all(parts.run_dir + "/step-000000012");
  REQUIRE(train_as({2}, parts) == "");
  const auto a = losses(whole), b = losses(parts);
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(b[i] == doctest::Approx(a[i]).epsilon(1e-4));
}

TEST_CASE("a damaged newest checkpoint costs its steps, not the run") {
  Temporary dir;
  RunConfig c = small(dir);
  c.checkpoint.every = 4;
  REQUIRE(train_as({2}, c) == "");
  const json before = weights(c, "000000012");
  const std::string shard = c.run_dir + "/step-000000012/shard-00001.safetensors";
  std::string bytes = read_file(shard);
  bytes[bytes.size() / 2] ^= 4;
  write_file(shard, bytes);
  REQUIRE(train_as({2}, c, dir / "out") == "");
  const std::string out = read_file(dir / "out");
  CHECK(out.find("step 12 cannot be used") != std::string::npos);
  CHECK(out.find(shard) != std::string::npos);
  CHECK(out.find("set aside: " + c.run_dir + "/step-000000012.bad") != std::string::npos);
  CHECK(weights(c, "000000012") == before);
}

TEST_CASE("what may not change is refused, by name") {
  Temporary dir;
  RunConfig c = small(dir);
  c.train.steps = 2;
  REQUIRE(train_as({1}, c) == "");
  c.train.steps = 4;
  auto refused = [&](const char* option, auto change) {
    RunConfig other = c;
    change(other);
    const std::string said = train_as({2}, other);
    CHECK_MESSAGE(said.starts_with(std::string("2 ") + option), said);
  };
  refused("train.seed", [](RunConfig& o) { o.train.seed = 7; });
  refused("train.global-batch", [](RunConfig& o) { o.train.global_batch = 4; });
  refused("model.width", [](RunConfig& o) { o.model.width = 32; });
  refused("model.layers", [](RunConfig& o) { o.model.layers = 2; });
  refused("model.heads", [](RunConfig& o) { o.model.heads = 1; });
  refused("model.context", [](RunConfig& o) { o.model.context = 8; });
  refused("resume=no", [](RunConfig& o) { o.resume = "no"; });
  refused("resume=soon", [](RunConfig& o) { o.resume = "soon"; });
  refused("no checkpoint of step 3", [](RunConfig& o) { o.resume = "3"; });
  refused("data.path", [](RunConfig& o) { o.data.path = "/nonexistent"; });
  refused("data.path", [&](RunConfig& o) {
    write_file(dir / "other", words(20001));
    o.data.path = dir / "other";
  });
  CHECK(train_as({1}, c) == "");
}

TEST_CASE("a chosen step is gone back to") {
  Temporary dir;
  RunConfig c = small(dir);
  c.checkpoint.every = 4;
  REQUIRE(train_as({1}, c) == "");
  const json before = weights(c, "000000012");
  c.resume = "4";
  REQUIRE(train_as({1}, c, dir / "out") == "");
  CHECK(read_file(dir / "out").find("continued from " + c.run_dir + "/step-000000004") !=
        std::string::npos);
  CHECK(weights(c, "000000012") == before);
  CHECK(losses(c).size() == 12);
}

TEST_CASE("a complete run says so, and a longer one goes on") {
  Temporary dir;
  RunConfig c = small(dir);
  c.train.steps = 3;
  REQUIRE(train_as({2}, c) == "");
  REQUIRE(train_as({2}, c, dir / "out") == "");
  CHECK(read_file(dir / "out") ==
        c.run_dir + " is complete: 3 of 3 steps done; a larger train.steps goes on from there\n");
  c.train.steps = 5;
  REQUIRE(train_as({2}, c) == "");
  CHECK(losses(c).size() == 5);
}

TEST_CASE("one rank's signal stops all at a checkpoint") {
  for (int signal : {SIGTERM, SIGUSR1}) {
    Temporary dir;
    RunConfig c = small(dir);
    const auto all = as_ranks({3}, [&](WorkerControl& control) {
      if (control.world().rank == 1) {  // it is pending when the run begins to look
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, signal);
        sigprocmask(SIG_BLOCK, &set, nullptr);
        raise(signal);
      }
      return train(c, control);
    });
    for (const std::string& s : all)
      CHECK(s == "75 stopped early at step 1 with a durable checkpoint");
    CHECK(*list_checkpoints(c.run_dir) == std::vector<uint64_t>{1});
    REQUIRE(train_as({3}, c) == "");
    CHECK(losses(c).size() == 12);
  }
}

TEST_CASE("a save that fails does not end the run") {
  Temporary dir;
  const SmallDisk disk(dir / "disk", "size=1200k");
  if (!disk) return;
  RunConfig c = small(dir);
  c.run_dir = disk / "run";
  c.checkpoint.every = 3;
  c.checkpoint.keep = 0;
  const std::string said = train_as({2}, c, dir / "out");
  const auto steps = list_checkpoints(c.run_dir);
  const size_t lines = losses(c).size();
  CHECK_MESSAGE(said.starts_with("1 checkpoint of step 12 failed: "), said);
  CHECK(*steps == std::vector<uint64_t>{3});
  CHECK(lines == 12);
  const std::string out = read_file(dir / "out");
  CHECK(out.find("checkpoint of step 6 failed: ") != std::string::npos);
  CHECK(out.find("the checkpoint of step 3 is intact") != std::string::npos);
}

TEST_CASE("a save that fails ends the run that says so") {
  Temporary dir;
  const SmallDisk disk(dir / "disk", "size=1200k");
  if (!disk) return;
  RunConfig c = small(dir);
  c.run_dir = disk / "run";
  c.checkpoint.every = 3;
  c.checkpoint.keep = 0;
  c.checkpoint.on_error = OnSaveError::abort;
  const std::string said = train_as({2}, c);
  const auto steps = list_checkpoints(c.run_dir);
  const std::string log = read_file(c.run_dir + "/run.log");
  CHECK_MESSAGE(said.starts_with("1 checkpoint of step 6 failed: "), said);
  CHECK(*steps == std::vector<uint64_t>{3});
  CHECK(log.find("checkpoint: step 3 durable, ") != std::string::npos);
  CHECK(log.find("checkpoint of step 6 failed: ") != std::string::npos);
}

TEST_CASE("a restart takes what the nodes themselves have, if it is newer") {
  for (ShardPolicy shard : {ShardPolicy::none, ShardPolicy::optimizer}) {
    Temporary dir;
    RunConfig whole = small(dir, "whole"), parts = small(dir, "parts");
    whole.parallel.shard = parts.parallel.shard = shard;
    parts.checkpoint.every = 6;
    parts.checkpoint.local_every = 2;
    parts.checkpoint.local_dir = dir / "local";
    REQUIRE(train_as({1, 2}, whole) == "");
    REQUIRE(train_as({1, 2}, parts) == "");
    std::filesystem::remove_all(parts.run_dir + "/step-000000012");
    REQUIRE(train_as({1, 2}, parts, dir / "out") == "");
    CHECK(read_file(dir / "out").find("continued from " + parts.checkpoint.local_dir) !=
          std::string::npos);
    CHECK(read_file(dir / "out").find("/step-000000010") != std::string::npos);
    CHECK(weights(parts, "000000012") == weights(whole, "000000012"));
    CHECK(losses(parts) == losses(whole));

    // Other ranks, and ranks that own other parts, take the shared one.
    for (const std::vector<int>& ranks : {std::vector<int>{2}, std::vector<int>{1, 2}}) {
      std::filesystem::remove_all(parts.run_dir + "/step-000000012");
      parts.parallel.bucket_mib = 1;
      REQUIRE(train_as(ranks, parts, dir / "out") == "");
      CHECK(read_file(dir / "out").find("continued from " + parts.run_dir + "/step-000000006") !=
            std::string::npos);
      CHECK(read_file(dir / "out").find("local checkpoint of step 10 cannot be used: ") !=
            std::string::npos);
    }
  }
}

TEST_CASE("a run that comes no further is not started for ever") {
  Temporary dir;
  RunConfig c = small(dir);
  c.optim.lr = 1e30;  // ends in nothing but infinities, before the first checkpoint
  c.optim.clip = 0;
  c.train.steps = 50;
  c.checkpoint.attempts = 2;
  for (int attempt = 0; attempt < 2; ++attempt)
    CHECK(train_as({2}, c).find("has not been finite") != std::string::npos);
  const std::string said = train_as({2}, c);
  CHECK(said.starts_with("93 "));
  CHECK(said.find(c.run_dir + " has been started 2 times from step 0 ") != std::string::npos);
  c.optim.lr = 1e-2;  // mended
  CHECK(train_as({2}, c) == "");
}

TEST_CASE("cuda is refused by a build without it, and where there is no GPU") {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  Temporary dir;
  RunConfig c = small(dir);
  c.device = "cuda";
  CHECK(train_as({2}, c).starts_with("2 device=cuda: "));
}

TEST_CASE("a model that does not fit together is refused") {
  Temporary dir;
  RunConfig c = small(dir);
  c.model.heads = 3;
  CHECK(train_as({2}, c).starts_with("2 "));
}

TEST_CASE("reductions begin before the backward pass ends") {
  Temporary dir;
  RunConfig c = small(dir);
  c.trace = dir / "trace.json";
  c.model = {3, 4, 64, 64};
  write_file(dir / "text", words(20000));
  REQUIRE(train_as({2}, c) == "");
  for (const char* name : {"trace.json", "trace.json.rank1"}) {
    const json events = json::parse(read_file(dir / name))["traceEvents"];
    // Passes in which a reduction began. When the other thread gets to run is the system's choice,
    // so it need not be all.
    int passes = 0, overlapped = 0;
    for (const json& pass : events) {
      if (pass["cat"] != "step" || pass["name"] != "backward") continue;
      ++passes;
      const double begin = pass["ts"], end = begin + pass["dur"].get<double>();
      overlapped += std::any_of(events.begin(), events.end(), [&](const json& e) {
        return e["cat"] == "comm" && e["ts"] > begin && e["ts"] < end;
      });
    }
    CHECK(passes == 12);
    CHECK(overlapped > 0);
  }
}

TEST_CASE("text is a function of weights, prompt and seed") {
  Temporary dir;
  RunConfig c = small(dir);
  auto text = [&](GenerateOptions options) {
    options.tokens = 40;
    return as_ranks({1}, [&](WorkerControl&) -> Status {
      std::string made;
      auto s = generate_untrained(c, options, [&](std::string_view piece) {
        made += piece;
        return true;
      });
      if (!s) return s;
      return fail(made);
    })[0];
  };
  GenerateOptions a, b;
  CHECK(text(a) == text(a));
  b.seed = 2;
  CHECK(text(a) != text(b));
  GenerateOptions longer;
  longer.prompt = std::string(100, 'x');  // more than the context holds
  CHECK(text(longer).starts_with("1 " + longer.prompt));
  longer.prompt = "";
  CHECK(text(longer).starts_with("1 "));
  const auto missing = as_ranks({1}, [&](WorkerControl&) {
    return generate_from_run(dir / "nothing", std::nullopt, {},
                             [](std::string_view) { return true; });
  });
  CHECK(missing[0].starts_with("2 no checkpoint in "));
}

TEST_CASE("text ends where nobody wants more, and where the model has no numbers") {
  Temporary dir;
  RunConfig c = small(dir);
  size_t pieces = 0;
  GenerateOptions endless;
  endless.prompt = "";
  endless.tokens = std::numeric_limits<int64_t>::max();
  CHECK(generate_untrained(c, endless, [&](std::string_view) { return ++pieces < 3; }));
  CHECK(pieces == 3);

  // Weights beyond all bounds, of a loss that was finite.
  c.train.steps = 1;
  c.optim.lr = 1e300;
  c.optim.warmup = 0;
  CHECK(train_as({1}, c) == "");
  const auto s =
      generate_from_run(c.run_dir, std::nullopt, {}, [](std::string_view) { return true; });
  REQUIRE_FALSE(s);
  CHECK_MESSAGE(s.error().what.find("not finite") != std::string::npos, s.error().what);
}

TEST_CASE("keys and values that are kept change no text") {
  Temporary dir;
  RunConfig c = small(dir);
  c.model = {2, 2, 32, 16};
  GenerateOptions options;
  options.prompt = "alpha beta";
  options.tokens = 60;  // the context is full more than once
  options.temperature = 0;
  const auto all = as_ranks({1}, [&](WorkerControl&) -> Status {
    std::string made;
    auto s = generate_untrained(c, options, [&](std::string_view piece) {
      made += piece;
      return true;
    });
    if (!s) return s;
    auto e = make_frozen_engine(c);
    if (!e) return forward(e);
    // The same with everything that the model sees computed anew for each byte. When the context is
    // full, it sees the last half of it, and what follows.
    std::vector<int32_t> text(options.prompt.begin(), options.prompt.end());
    std::vector<float> logits(Text::vocab);
    const auto context = static_cast<size_t>(c.model.context);
    size_t begin = 0;
    Printable printable;
    std::string expected = options.prompt;
    for (int64_t i = 0; i < options.tokens; ++i) {
      if (text.size() - begin > context) begin = text.size() - context / 2;
      const auto count = static_cast<int64_t>(text.size() - begin);
      Ctx ctx = e->context();
      e->model->extend(ctx, View(text.data() + begin, DType::i32, {1, count}), 0,
                       View(logits.data(), DType::f32, {Text::vocab}), *e->shard);
      text.push_back(choose(logits, options, static_cast<uint64_t>(i)));
      expected += printable.put(static_cast<uint8_t>(text.back()));
    }
    expected += printable.finish();
    return fail(made == expected ? "same" : made + " | " + expected);
  });
  CHECK(all[0] == "1 same");
}

TEST_CASE("computing layers twice changes no bit of a run") {
  Temporary dir;
  RunConfig once = small(dir, "once"), twice = small(dir, "twice");
  once.model.layers = twice.model.layers = 3;
  twice.train.recompute = Recompute::block;
  twice.train.eval_every = 5;
  REQUIRE(train_as({2}, once) == "");
  REQUIRE(train_as({2}, twice) == "");
  CHECK(losses(twice) == losses(once));
  CHECK(weights(twice, "000000012") == weights(once, "000000012"));
}
