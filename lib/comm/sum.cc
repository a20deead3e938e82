#include "comm/sum.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace trainlaunch {

namespace {

// Without a second pass over memory for the numbers of ranks that are common on a node.
template <int N>
void sum_n(float* out, std::span<const float* const> in, int64_t n) {
  std::array<const float*, N> p;
  std::copy_n(in.begin(), N, p.begin());
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    float s = p[0][i];
    for (int k = 1; k < N; ++k) s += p[k][i];
    out[i] = s;
  }
}

// Any number of inputs, in blocks whose partial sums stay in the nearest cache.
void sum_many(float* out, std::span<const float* const> in, int64_t n) {
  constexpr int64_t block = 2048;
  alignas(64) std::array<float, block> partial;
  for (int64_t at = 0; at < n; at += block) {
    const int64_t m = std::min(block, n - at);
    std::copy_n(in[0] + at, m, partial.data());
    for (size_t k = 1; k < in.size(); ++k) {
      const float* p = in[k] + at;
#pragma omp simd
      for (int64_t i = 0; i < m; ++i) partial[i] += p[i];
    }
    std::copy_n(partial.data(), m, out + at);
  }
}

}  // namespace

void sum_in_order(float* out, std::span<const float* const> in, int64_t n) {
  switch (in.size()) {
    case 0:
      return;
    case 1:
      if (out != in[0]) std::copy_n(in[0], n, out);
      return;
    case 2:
      return sum_n<2>(out, in, n);
    case 3:
      return sum_n<3>(out, in, n);
    case 4:
      return sum_n<4>(out, in, n);
    default:
      return sum_many(out, in, n);
  }
}

}  // namespace trainlaunch
