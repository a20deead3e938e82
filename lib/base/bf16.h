// bf16: the upper half of an f32.
#pragma once

#include <bit>
#include <cstdint>

namespace trainlaunch {

// Rounds to nearest even; a NaN stays one.
inline uint16_t bf16_of(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t rounded = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  const uint16_t quiet_nan = static_cast<uint16_t>((bits >> 16) | 0x40);
  return x != x ? quiet_nan : rounded;
}
inline float float_of(uint16_t bf16) { return std::bit_cast<float>(uint32_t{bf16} << 16); }

}  // namespace trainlaunch
