#include "comm/sum.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/bf16.h"

// A version for wider vectors, chosen when the program starts.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WITH_WIDE_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define WITH_WIDE_VECTORS
#endif

namespace trainlaunch {

namespace {

constexpr int64_t bf16_block = 1024;

// Without a second pass over memory for the numbers of ranks that are common on a node.
template <int N>
[[gnu::always_inline]] inline void sum_n(float* out, std::span<const Branch> in, int64_t n) {
  std::array<const float*, N> p;
  for (int k = 0; k < N; ++k) p[k] = in[k].p;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    float s = p[0][i];
    for (int k = 1; k < N; ++k) s += p[k][i];
    out[i] = s;
  }
}

// Any number of inputs, in blocks whose partial sums stay in the nearest cache.
[[gnu::always_inline]] inline void sum_many(float* out, std::span<const Branch> in, int64_t n) {
  constexpr int64_t block = 2048;
  alignas(64) std::array<float, block> partial;
  for (int64_t at = 0; at < n; at += block) {
    const int64_t m = std::min(block, n - at);
    std::copy_n(in[0].p + at, m, partial.data());
    for (size_t k = 1; k < in.size(); ++k) {
      const float* p = in[k].p + at;
#pragma omp simd
      for (int64_t i = 0; i < m; ++i) partial[i] += p[i];
    }
    std::copy_n(partial.data(), m, out + at);
  }
}

}  // namespace

WITH_WIDE_VECTORS void sum_in_order(float* out, std::span<const Branch> in, int64_t n) {
  switch (in.size()) {
    case 0:
      return;
    case 1:
      if (out != in[0].p) std::copy_n(in[0].p, n, out);
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

void sum_as_tree(float* out, std::span<const Branch> in, int64_t n) {
  // Sums that wait for their neighbour, each of fewer ranks than the one before it.
  constexpr int64_t block = 512;
  constexpr int levels = 32;
  struct Waiting {
    int ranks;
    alignas(64) std::array<float, block> sum;
  };
  std::array<Waiting, levels> stack;
  for (int64_t at = 0; at < n; at += block) {
    const int64_t m = std::min(block, n - at);
    int height = 0;
    for (const Branch& b : in) {
      Waiting& top = stack[height++];
      top.ranks = b.ranks;
      std::copy_n(b.p + at, m, top.sum.data());
      for (; height > 1 && stack[height - 2].ranks == stack[height - 1].ranks; --height) {
        float* left = stack[height - 2].sum.data();
        const float* right = stack[height - 1].sum.data();
#pragma omp simd
        for (int64_t i = 0; i < m; ++i) left[i] += right[i];
        stack[height - 2].ranks *= 2;
      }
    }
    std::copy_n(stack[0].sum.data(), m, out + at);
  }
}

WITH_WIDE_VECTORS void round_to_bf16(float* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] = float_of(bf16_of(x[i]));
}

// Blocks go through the nearest cache, because numbers of two sizes share their memory: packed ones
// from the front, which never overtake what is still to be read, and the other way round.
WITH_WIDE_VECTORS void pack_bf16(float* x, int64_t n) {
  alignas(64) std::array<uint16_t, bf16_block> packed;
  auto* out = reinterpret_cast<std::byte*>(x);
  for (int64_t at = 0; at < n; at += bf16_block) {
    const int64_t m = std::min(bf16_block, n - at);
#pragma omp simd
    for (int64_t i = 0; i < m; ++i) packed[i] = bf16_of(x[at + i]);
    std::memcpy(out + at * sizeof(uint16_t), packed.data(), m * sizeof(uint16_t));
  }
}

WITH_WIDE_VECTORS void unpack_bf16(float* x, int64_t n) {
  alignas(64) std::array<uint16_t, bf16_block> packed;
  const auto* in = reinterpret_cast<const std::byte*>(x);
  for (int64_t at = (n - 1) / bf16_block * bf16_block; at >= 0 && n > 0; at -= bf16_block) {
    const int64_t m = std::min(bf16_block, n - at);
    std::memcpy(packed.data(), in + at * sizeof(uint16_t), m * sizeof(uint16_t));
#pragma omp simd
    for (int64_t i = 0; i < m; ++i) x[at + i] = float_of(packed[i]);
  }
}

}  // namespace trainlaunch
