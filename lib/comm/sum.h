// The one sum that communicators take.
#pragma once

#include <cstdint>
#include <span>

namespace trainlaunch {

// out[i] = ((in[0][i] + in[1][i]) + in[2][i]) + ... in f32. `out` may be one of the inputs, and
// overlaps none of them otherwise.
void sum_in_order(float* out, std::span<const float* const> in, int64_t n);

}  // namespace trainlaunch
