#include "ops/cpu/kernels.h"

#include <array>
#include <cmath>

// The same source several times, each in a namespace and for an instruction set of its own. It
// includes nothing: an inline function of a library that is first compiled for AVX-512 could be the
// copy that the linker keeps for everyone. The order of the two parts matters; the empty line
// between them keeps clang-format from sorting them.
#define TL_INLINE inline __attribute__((always_inline))
#define TL_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define TL_TARGET_BEGIN(features) \
  TL_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define TL_TARGET_END _Pragma("clang attribute pop")
#else
#define TL_TARGET_BEGIN(features) _Pragma("GCC push_options") TL_PRAGMA(GCC target(features))
#define TL_TARGET_END _Pragma("GCC pop_options")
#endif

namespace trainlaunch {

namespace {

constexpr int64_t pad = 16;  // floats: the widest vector; rows of scratch matrices are padded to it
constexpr int64_t padded(int64_t n) { return (n + pad - 1) / pad * pad; }

}  // namespace

int64_t attention_floats(int64_t width) {
  constexpr int64_t b = attention_block;
  return 4 * b * padded(width) + b * b + 3 * b;
}
int64_t attention_back_floats(int64_t width, int64_t context) {
  constexpr int64_t b = attention_block;
  const int64_t rows = (context + b - 1) / b * b;
  return 7 * b * padded(width) + 2 * b * b + rows * (padded(width) + 1);
}

namespace baseline {
namespace {
#define TL_VECTOR 4
#include "ops/cpu/kernels_rows.inc"

#include "ops/cpu/kernels_attention.inc"
#undef TL_VECTOR
}  // namespace
}  // namespace baseline

#if defined(__x86_64__)
TL_TARGET_BEGIN("avx2,fma")
namespace avx2 {
namespace {
#define TL_VECTOR 8
#include "ops/cpu/kernels_rows.inc"

#include "ops/cpu/kernels_attention.inc"
#undef TL_VECTOR
}  // namespace
}  // namespace avx2
TL_TARGET_END

TL_TARGET_BEGIN("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
namespace avx512 {
namespace {
#define TL_VECTOR 16
#include "ops/cpu/kernels_rows.inc"

#include "ops/cpu/kernels_attention.inc"
#undef TL_VECTOR
}  // namespace
}  // namespace avx512
TL_TARGET_END
#endif

// clang-format off
#define TL_KERNELS(isa)                                                                          \
  Kernels{#isa, isa::exp, isa::gelu, isa::gelu_back, isa::add, isa::sum, isa::sumsq, isa::adam,  \
          isa::norm, isa::norm_back, isa::cross_entropy, isa::norm_back_columns,                 \
          isa::bias_back_columns, isa::attention, isa::attention_back}
// clang-format on

std::span<const Kernels> kernels() {
#if defined(__x86_64__)
  static constexpr std::array all = {TL_KERNELS(avx512), TL_KERNELS(avx2), TL_KERNELS(baseline)};
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return std::span(all).subspan(has_avx512 ? 0 : has_avx2 ? 1 : 2);
#else
  static constexpr std::array all = {TL_KERNELS(baseline)};
  return all;
#endif
}

}  // namespace trainlaunch
