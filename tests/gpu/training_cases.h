// A small model trained on a device, by one rank and by two that share it, in every form of data
// parallelism, against one rank on processors. Each program that runs the cases has its own device.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "tests/gpu/training_gpu.h"
#include "tests/unit/team.h"

namespace trainlaunch::testing {

using MakeDevice = std::function<Result<TrainingDevice>(DType)>;

inline constexpr int64_t all_sequences = 4;
inline GptConfig small_model() {
  GptConfig c;
  c.layers = 2;
  c.heads = 2;
  c.width = 32;
  c.context = 17;
  c.vocab = 40;
  return c;
}

inline Result<TrainingDevice> make_processors(DType type) {
  TrainingDevice on;
  on.device = make_host_device();
  on.ops = make_cpu_ops(1, SameBits::same_threads, type);
  return on;
}

// Losses of the first steps, of the same global batch each time.
inline Result<std::vector<double>> losses_of(WorkerControl& control, const MakeDevice& make,
                                             DType type, const ShardOptions& options) {
  const GptConfig config = small_model();
  const World& world = control.world();
  const int64_t sequences = all_sequences / world.size, n = all_sequences * config.context;
  auto on = make(type);
  if (!on) return forward(on);
  CommOptions how;
  how.interface = "lo";
  how.timeout = Seconds(60);
  auto comm =
      make_device_comm(control, {}, how, {*on->device, math_by(*on->ops), "the only device", {}});
  if (!comm) return forward(comm);
  TrainingRank rank(std::move(*on), std::move(*comm), config, sequences, options);
  if (!rank.status) return forward(rank.status);

  std::vector<int32_t> tokens, targets;
  for (int64_t i = 0; i <= n; ++i) {
    const Philox r = philox(3, {static_cast<uint32_t>(i), 0, 0, 0});
    const auto token = static_cast<int32_t>(r[0] % static_cast<uint32_t>(config.vocab));
    if (i < n) tokens.push_back(token);
    if (i > 0) targets.push_back(token);
  }
  const auto mine = [&](const std::vector<int32_t>& all) {
    return std::span(all).subspan(static_cast<size_t>(world.rank * sequences * config.context),
                                  static_cast<size_t>(sequences * config.context));
  };
  if (auto ok = rank.load(mine(tokens), mine(targets)); !ok) return forward(ok);
  std::vector<double> losses;
  for (int step = 0; step < 4; ++step) {
    auto loss = rank.step(3e-3, static_cast<double>(n));
    if (!loss) return forward(loss);
    losses.push_back(*loss);
  }
  return losses;
}

inline std::vector<double> losses_with(int ranks, const MakeDevice& make, DType type,
                                       const ShardOptions& options) {
  std::mutex mutex;
  std::vector<double> losses;
  std::vector<std::string> errors;
  Team(ranks).run([&](WorkerControl& control) {
    auto mine = losses_of(control, make, type, options);
    std::lock_guard lock(mutex);
    if (!mine)
      errors.push_back(mine.error().what);
    else if (control.world().rank == 0)
      losses = *mine;
  });
  for (const std::string& e : errors) FAIL_CHECK(e);
  return losses;
}

// How far apart two runs are allowed to drift: in f32 by rounding, in bf16 by its epsilon, 2^-8.
inline void check_same_course(const std::vector<double>& got, const std::vector<double>& want,
                              double tolerance) {
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(got[i] - want[i]) <= tolerance);
  }
}

inline void check_training(const MakeDevice& make) {
  ShardOptions options;
  options.bucket_bytes = 16 << 10;  // several
  options.rule.weight_decay = 0.1f;
  const std::vector<double> want = losses_with(1, make_processors, DType::f32, options);
  REQUIRE(want.size() == 4);
  CHECK(std::abs(want[0] - std::log(40.0)) < 0.2);  // every token equally likely, at first
  CHECK(want[3] < want[0] - 0.05);
  for (const DType type : {DType::f32, DType::bf16}) {
    const double tolerance = type == DType::f32 ? 1e-4 : 0.03;
    CAPTURE(name_of(type));
    check_same_course(losses_with(1, make, type, options), want, tolerance);
    for (const ShardPolicy policy :
         {ShardPolicy::none, ShardPolicy::optimizer, ShardPolicy::gradients, ShardPolicy::full}) {
      if (type == DType::bf16 && policy < ShardPolicy::gradients) continue;
      CAPTURE(name_of(policy));
      options.policy = policy;
      check_same_course(losses_with(2, make, type, options), want, tolerance);
    }
    options.policy = ShardPolicy::optimizer;
  }
}

}  // namespace trainlaunch::testing
