// Conversions between the floating-point types, shared by the implementations on the host.
#pragma once

#include <bit>
#include <cstdint>

#include "base/base.h"

namespace trainlaunch {

// bf16 is the upper half of an f32. Rounds to nearest even; a NaN stays one.
inline uint16_t bf16_of(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t rounded = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  const uint16_t quiet_nan = static_cast<uint16_t>((bits >> 16) | 0x40);
  return x != x ? quiet_nan : rounded;
}
inline float float_of(uint16_t bf16) { return std::bit_cast<float>(uint32_t{bf16} << 16); }

// to[i] = from[i] for i in [begin, end). The types are equal, or each one of f32, f64 and bf16;
// from f64 to bf16 goes through f32.
void convert(View from, View to, int64_t begin, int64_t end);

// v[i] = value for i in [begin, end), for every type.
void fill(View v, double value, int64_t begin, int64_t end);

}  // namespace trainlaunch
