#include "ops/cpu/kernels.h"

#include <algorithm>
#include <array>
#include <cmath>

// The same source several times, each in a namespace and for an instruction set of its own. It
// includes nothing: an inline function of a library that is first compiled for AVX-512 could be the
// copy that the linker keeps for everyone. The order of the two parts matters; the empty line
// between them keeps clang-format from sorting them.
#define TL_INLINE inline __attribute__((always_inline))
#define TL_LAMBDA __attribute__((always_inline))
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

// A product's sums stay in registers for so many elements of k. The gradient of a weight has a
// short side of rows that lie far apart, and adds to memory anyway: there it pays to keep what is
// copied of them in the cache, and, from slice to slice, the sums too.
constexpr int64_t product_slice = 4096, product_short_slice = 256;
constexpr int64_t panel_budget = int64_t{384} << 10;  // floats, in the second cache
constexpr int64_t group_floats = product_row_unit * product_slice;
constexpr int64_t panel_floats = panel_budget + product_column_unit * product_slice;

// n, or the largest of equal parts of it, in whole units, that are not above `most`.
constexpr int64_t equal_part(int64_t n, int64_t unit, int64_t most) {
  const int64_t units = (n + unit - 1) / unit, fit = std::max<int64_t>(most / unit, 1);
  const int64_t parts = std::max<int64_t>((units + fit - 1) / fit, 1);
  return (units + parts - 1) / parts * unit;
}

// What of c is done at a time: as many columns as b's slice of them leaves room for in the budget,
// and for their sums too if there are more slices than one.
struct Extent {
  int64_t rows, columns;
};
constexpr Extent extent_at_once(int64_t m, int64_t n, int64_t k, int64_t slice) {
  const auto columns = [n](int64_t rows) {
    return equal_part(n, product_column_unit, panel_budget / std::max<int64_t>(rows, 1));
  };
  if (k <= slice) return {m, columns(k)};
  const Extent tall{m, columns(slice + m)};
  Extent wide{0, columns(2 * slice)};
  wide.rows = equal_part(m, product_row_unit, panel_budget / wide.columns - slice);
  // a is copied for each part of the columns, b for each part of the rows.
  const auto copied = [=](const Extent& b) {
    return m * ((n + b.columns - 1) / b.columns) + n * ((m + b.rows - 1) / b.rows);
  };
  return copied(wide) < copied(tall) ? wide : tall;
}

}  // namespace

int64_t product_floats(int64_t m, int64_t n, int64_t k, bool wide) {
  return group_floats + panel_floats + (k > product_slice && !wide ? m * n : 0);
}
int64_t attention_floats(int64_t width, int64_t context) {
  constexpr int64_t queries = attention_queries;
  return 2 * (padded(context) + queries) * padded(width) + queries * (attention_keys + 3);
}
int64_t attention_back_floats(int64_t width, int64_t context) {
  constexpr int64_t keys = attention_back_keys;
  return padded(context) * (3 * padded(width) + 2) +
         keys * (5 * padded(width) + 2 * attention_back_queries);
}

namespace baseline {
namespace {
#define TL_VECTOR 4
#include "ops/cpu/kernels_set.inc"
#undef TL_VECTOR
}  // namespace
}  // namespace baseline

#if defined(__x86_64__)
TL_TARGET_BEGIN("avx2,fma")
namespace avx2 {
namespace {
#define TL_VECTOR 8
#include "ops/cpu/kernels_set.inc"
#undef TL_VECTOR
}  // namespace
}  // namespace avx2
TL_TARGET_END

TL_TARGET_BEGIN("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
namespace avx512 {
namespace {
#define TL_VECTOR 16
#include "ops/cpu/kernels_set.inc"
#undef TL_VECTOR
}  // namespace
}  // namespace avx512
TL_TARGET_END
#endif

// clang-format off
#define TL_LOOPS(set)                                                                          \
  {set::gelu, set::gelu_back, set::add, set::accumulate, set::narrow, set::norm, set::norm_back, \
   set::cross_entropy, set::norm_back_columns, set::bias_back_columns, set::product,             \
   set::attention, set::attention_back}
#define TL_KERNELS(isa)                                                                          \
  Kernels{#isa, TL_LOOPS(isa::of_f32), TL_LOOPS(isa::of_bf16), isa::exp, isa::sum, isa::sumsq,   \
          isa::adam}
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
