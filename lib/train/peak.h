// How fast a rank could compute at best: what its speed is measured against.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/base.h"
#include "ops/ops.h"

namespace trainlaunch {

struct Peak {
  double flops = 0;  // a second, of one rank; 0: unknown
  std::string name;  // which peak that is, for people
};

// What the configuration says (train.peak-tflops, if it is not 0), or the dense peak of a GPU that
// is known.
std::optional<Peak> known_peak(double tflops, const Device& device, const Ops& ops);

// The best of a few products of large matrices, in a fifth of a second. `ops` need not be
// ready for use otherwise: it gets scratch memory for the measurement alone, and must be given
// other memory afterwards.
Result<Peak> measured_peak(Device& device, Stream& stream, Ops& ops, int threads);

// Operations a second in dense matrix products that sum in f32, from the makers' data sheets, by
// the name that the driver gives the device. Figures "with sparsity" are twice that, and nobody's.
std::optional<double> dense_peak(std::string_view device, DType type);

}  // namespace trainlaunch
