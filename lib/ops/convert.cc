#include "ops/convert.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace trainlaunch {

namespace {

float widen(Bf16 x) { return float_of(x.bits); }
float widen(float x) { return x; }
double widen(double x) { return x; }

template <class To, class From>
To narrow(From x) {
  if constexpr (std::is_same_v<To, Bf16>) {
    return {bf16_of(static_cast<float>(widen(x)))};
  } else {
    return static_cast<To>(widen(x));
  }
}

template <class From, class To>
void convert_as(const void* from, void* to, int64_t begin, int64_t end) {
  const From* in = static_cast<const From*>(from);
  To* out = static_cast<To*>(to);
  for (int64_t i = begin; i < end; ++i) out[i] = narrow<To>(in[i]);
}

template <class From>
void convert_from(const void* from, View to, int64_t begin, int64_t end) {
  switch (to.t) {
    case DType::f32:
      return convert_as<From, float>(from, to.p, begin, end);
    case DType::f64:
      return convert_as<From, double>(from, to.p, begin, end);
    case DType::bf16:
      return convert_as<From, Bf16>(from, to.p, begin, end);
    case DType::i32:
    case DType::u8:
      assert(!"integers are not converted");
  }
}

template <class T>
void fill_as(View v, T value, int64_t begin, int64_t end) {
  std::fill(static_cast<T*>(v.p) + begin, static_cast<T*>(v.p) + end, value);
}

}  // namespace

void round_by_chance(const float* from, Bf16* to, int64_t n, uint64_t seed, uint32_t step,
                     uint64_t element) {
  Philox words{};
  for (int64_t i = 0; i < n; ++i, ++element) {
    if (i == 0 || element % 8 == 0) words = rounding_words(seed, step, element);
    to[i] = {rounded_bf16(from[i], rounding_bits(words, element))};
  }
}

void convert(View from, View to, int64_t begin, int64_t end) {
  assert(from.size() == to.size());
  if (begin >= end) return;
  if (from.t == to.t) {
    const size_t size = bytes_of(from.t);
    std::memmove(static_cast<std::byte*>(to.p) + begin * size,
                 static_cast<const std::byte*>(from.p) + begin * size, (end - begin) * size);
    return;
  }
  switch (from.t) {
    case DType::f32:
      return convert_from<float>(from.p, to, begin, end);
    case DType::f64:
      return convert_from<double>(from.p, to, begin, end);
    case DType::bf16:
      return convert_from<Bf16>(from.p, to, begin, end);
    case DType::i32:
    case DType::u8:
      assert(!"integers are not converted");
  }
}

void fill(View v, double value, int64_t begin, int64_t end) {
  switch (v.t) {
    case DType::f32:
      return fill_as(v, static_cast<float>(value), begin, end);
    case DType::f64:
      return fill_as(v, value, begin, end);
    case DType::bf16:
      return fill_as(v, bf16_of(static_cast<float>(value)), begin, end);
    case DType::i32:
      return fill_as(v, static_cast<int32_t>(value), begin, end);
    case DType::u8:
      return fill_as(v, static_cast<uint8_t>(value), begin, end);
  }
}

}  // namespace trainlaunch
