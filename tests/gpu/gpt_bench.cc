// Speed of GPT-2's training step on the first GPU: gpt_bench 124M|1.5B bf16|f32 SEQUENCES STEPS
//
// Prints the median step of those after the first few, tokens a second, and MFU: the share that
// 6 N + 6 L C T operations a token are of the GPU's dense peak in that type, by its data sheet.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/cuda/cuda_device.h"
#include "ops/cuda/cuda_ops.h"
#include "tests/gpu/training_gpu.h"
#include "train/peak.h"

using namespace trainlaunch;
using namespace trainlaunch::testing;

namespace {

constexpr int warm_up = 5;

Status measure(const std::string& model, DType type, int64_t sequences, int steps) {
  GptConfig config;
  config.context = 1024;
  config.vocab = 50304;  // GPT-2's 50,257, rounded up as everyone does
  config.layers = model == "1.5B" ? 48 : 12;
  config.heads = model == "1.5B" ? 25 : 12;
  config.width = model == "1.5B" ? 1600 : 768;

  TrainingDevice on;
  auto device = make_cuda_device(0);
  if (!device) return forward(device);
  auto ops = make_cuda_ops(0, type);
  if (!ops) return forward(ops);
  on.device = std::move(*device);
  on.ops = std::move(*ops);
  const std::string name = on.device->name();
  const auto peak = dense_peak(name, type);
  const auto control = make_single_control();
  auto comm = make_device_comm(*control, {}, {}, {*on.device, math_by(*on.ops), "one", {}});
  if (!comm) return forward(comm);
  TrainingRank rank(std::move(on), std::move(*comm), config, sequences, {});
  if (!rank.status) return rank.status;

  const int64_t n = sequences * config.context;
  std::vector<int32_t> tokens, targets;
  for (int64_t i = 0; i < n; ++i) {
    const Philox r = philox(1, {static_cast<uint32_t>(i), 0, 0, 0});
    tokens.push_back(static_cast<int32_t>(r[0] % 50257));
    targets.push_back(static_cast<int32_t>(r[1] % 50257));
  }
  if (auto ok = rank.load(tokens, targets); !ok) return ok;
  std::vector<double> seconds;
  double first = 0, last = 0;
  for (int step = 0; step < warm_up + steps; ++step) {
    const auto begin = Clock::now();
    auto loss = rank.step(1e-4, static_cast<double>(n));
    if (!loss) return forward(loss);
    (step == 0 ? first : last) = *loss;
    if (step >= warm_up) seconds.push_back(Seconds(Clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2], speed = static_cast<double>(n) / median;
  std::printf("GPT-2 %s, %s, %lld x %lld tokens on %s: %.1f ms a step, %.0f tokens/s",
              model.c_str(), name_of(type), static_cast<long long>(sequences),
              static_cast<long long>(config.context), name.c_str(), 1e3 * median, speed);
  if (peak)
    std::printf(", MFU %.1f %% of %.1f TFLOP/s (dense)",
                100 * speed * rank.model().flops_per_token() / *peak, *peak / 1e12);
  std::printf("; loss %.3f, then %.3f\n", first, last);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() != 4 || (words[0] != "124M" && words[0] != "1.5B")) {
    std::fputs("usage: gpt_bench 124M|1.5B bf16|f32 SEQUENCES STEPS\n", stderr);
    return exit_code::usage;
  }
  const auto done =
      measure(words[0], words[1] == "f32" ? DType::f32 : DType::bf16,
              std::max(1, std::atoi(words[2].c_str())), std::max(1, std::atoi(words[3].c_str())));
  if (done) return exit_code::done;
  std::fprintf(stderr, "gpt_bench: %s\n", done.error().what.c_str());
  return done.error().exit;
}
