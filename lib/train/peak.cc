#include "train/peak.h"

#include <algorithm>

#include "train/words.h"

namespace trainlaunch {

namespace {

constexpr Seconds enough{0.2}, patience{60};
constexpr int least_runs = 3;

// Large enough for the device to be at its best, and on processors short enough for some of the
// products to run undisturbed by whatever else the machine does.
int64_t side_for(const Device& device) { return device.host_readable() ? 512 : 8192; }

struct Known {
  std::string_view device;  // part of its name
  double bf16, f32;         // TFLOP/s; f32 without TF32
};
// The longer name first where one is part of another.
constexpr Known known[] = {
    {"GB200", 2500, 80},    {"B200", 2250, 80},    {"GH200", 989.4, 67},   {"H200", 989.4, 67},
    {"H100 PCIe", 756, 51}, {"H100 NVL", 835, 60}, {"H100", 989.4, 67},    {"H800", 989.4, 67},
    {"H20", 148, 44},       {"A100", 312, 19.5},   {"A800", 312, 19.5},    {"A40", 149.7, 37.4},
    {"A30", 165, 10.3},     {"A10G", 70, 35},      {"A10", 125, 31.2},     {"L40S", 362, 91.6},
    {"L40", 181, 90.5},     {"L4", 121, 30.3},     {"RTX 4090", 165, 82.6}};

// Seconds of the fastest of a few products.
Result<double> time_products(Device& device, Stream& stream, Ops& ops, int64_t side) {
  const OpsLimits limits{1, side, side, side / 64, side};
  View a, b, c, scratch;
  const auto take = [&](Arena& arena) {
    a = arena.take("a", ops.dtype(), {side, side});
    b = arena.take("b", ops.dtype(), {side, side});
    c = arena.take("c", ops.dtype(), {side, side});
    scratch = arena.take("scratch", DType::u8, {static_cast<int64_t>(ops.scratch_bytes(limits))});
  };
  auto arena = Arena::fitting(device, take);
  if (!arena) return forward(arena);
  ops.use_scratch(scratch);
  ops.fill(stream, a, 0.7);
  ops.fill(stream, b, 1.3);
  Gemm g;
  g.a = a;
  g.b = b;
  g.c = c;
  double best = 0;
  const auto begin = Clock::now();
  for (int i = 0; i < least_runs || Clock::now() - begin < enough; ++i) {
    const auto start = Clock::now();
    ops.gemm(stream, g);
    if (auto s = stream.record().wait(Deadline::in(patience)); !s) return forward(s);
    const double seconds = Seconds(Clock::now() - start).count();
    best = best > 0 ? std::min(best, seconds) : seconds;
  }
  return best;
}

std::string speed(double flops) {
  return flops < 1e12 ? fixed(flops / 1e9, 1) + " GFLOP/s" : fixed(flops / 1e12, 1) + " TFLOP/s";
}

}  // namespace

std::optional<double> dense_peak(std::string_view device, DType type) {
  for (const Known& k : known)
    if (device.find(k.device) != std::string_view::npos)
      return 1e12 * (type == DType::bf16 ? k.bf16 : k.f32);
  return std::nullopt;
}

std::optional<Peak> known_peak(double tflops, const Device& device, const Ops& ops) {
  if (tflops > 0)
    return Peak{1e12 * tflops, speed(1e12 * tflops) + " a rank, as train.peak-tflops says"};
  const auto flops = dense_peak(device.name(), ops.dtype());
  if (!flops) return std::nullopt;
  return Peak{*flops, speed(*flops) + " a rank, dense " + name_of(ops.dtype()) + " products of " +
                          device.name() + " by its data sheet"};
}

Result<Peak> measured_peak(Device& device, Stream& stream, Ops& ops, int threads) {
  const int64_t side = side_for(device);
  auto seconds = time_products(device, stream, ops, side);
  if (!seconds) return forward(seconds);
  const double flops = 2.0 * static_cast<double>(side * side * side) / *seconds;
  return Peak{flops, speed(flops) + " a rank, measured: " + name_of(ops.dtype()) + " products of " +
                         std::to_string(side) + " x " + std::to_string(side) + " matrices, " +
                         plural(static_cast<uint64_t>(threads), "thread")};
}

}  // namespace trainlaunch
