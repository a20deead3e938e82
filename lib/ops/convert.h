// Conversions between the floating-point types, shared by the implementations on the host.
#pragma once

#include <bit>
#include <cstdint>

#include "base/base.h"

namespace trainlaunch {

// To one of the two neighbours: up in magnitude if `random`, one of 2^16 values, is large enough.
// What is not finite stays what it is.
inline uint16_t rounded_bf16(float x, uint16_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const bool finite = (bits & 0x7f800000) != 0x7f800000;
  return finite ? static_cast<uint16_t>((bits + random) >> 16) : bf16_of(x);
}
// What an element of the space of parameters is rounded with in a step: eight neighbours share one
// call of Philox, two of them a word, the lower half first.
inline Philox rounding_words(uint64_t seed, uint32_t step, uint64_t element) {
  return philox(seed, RandomStream::rounding, element / 8, step);
}
inline uint16_t rounding_bits(const Philox& words, uint64_t element) {
  return static_cast<uint16_t>(words[element % 8 / 2] >> (element % 2 * 16));
}
inline uint16_t rounding_bits(uint64_t seed, uint32_t step, uint64_t element) {
  return rounding_bits(rounding_words(seed, step, element), element);
}

// The above for n neighbours in the space of parameters, of which the first is `element`.
void round_by_chance(const float* from, Bf16* to, int64_t n, uint64_t seed, uint32_t step,
                     uint64_t element);

// to[i] = from[i] for i in [begin, end). The types are equal, or each one of f32, f64 and bf16;
// from f64 to bf16 goes through f32.
void convert(View from, View to, int64_t begin, int64_t end);

// v[i] = value for i in [begin, end), for every type.
void fill(View v, double value, int64_t begin, int64_t end);

}  // namespace trainlaunch
