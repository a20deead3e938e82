// What kernels are written in: CUDA, and the few instructions that C++ has no words for. The same
// kernels compile for the host with an emulator of threads and warps, which is how they are tested
// where there is no GPU: a translation unit that is not nvcc's includes that emulator first, and
// it defines TL_SIMT_EMULATED and all names of the first part.
#pragma once

#include <cstdint>
#include <cstring>

#ifndef TL_SIMT_EMULATED

#include <cuda_runtime.h>

#define TL_DEVICE __device__ __forceinline__

namespace trainlaunch::gpu {

// Memory of the block whose size the launch says, aligned to 16 bytes.
__device__ __forceinline__ unsigned char* shared_memory() {
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
}

template <class... Parameters, class... Arguments>
void launch(void* stream, dim3 grid, unsigned threads, size_t shared, void (*kernel)(Parameters...),
            Arguments... arguments) {
  constexpr size_t always_allowed = 48 << 10;
  if (shared > always_allowed)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(shared));
  kernel<<<grid, threads, shared, static_cast<cudaStream_t>(stream)>>>(
      static_cast<Parameters>(arguments)...);
}
inline void copy_bytes(void* stream, void* to, const void* from, size_t bytes) {
  cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream));
}
inline void zero_bytes(void* stream, void* to, size_t bytes) {
  cudaMemsetAsync(to, 0, bytes, static_cast<cudaStream_t>(stream));
}

// Sixteen bytes from global into shared memory, in the background; groups of them are waited for
// in the order of their commits.
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
}
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
template <int newer>  // all but so many of the newest groups have arrived
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(newer) : "memory");
}

// Four 8x8 matrices of 16-bit elements from shared memory; lane i says where row i % 8 of matrix
// i / 8 is. Lane l gets from each one row l / 4, columns 2 (l % 4) and the next; transposed: column
// l / 4, rows 2 (l % 4) and the next.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}

// c[16, 8] += a[16, 16] b[16, 8] by a warp on tensor cores: bf16 in, f32 out. With g = lane / 4 and
// t = lane % 4, a lane holds
//   a[0..3]: (g, 2t..), (g+8, 2t..), (g, 2t+8..), (g+8, 2t+8..), two columns each
//   b0, b1:  (2t.., g), (2t+8.., g), two rows each
//   c[0..3]: (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1)
// (PTX ISA, "Matrix Fragments for mma.m16n8k16").
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two numbers as bf16, rounded to nearest even; `low` in the lower half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ float bits_as_float(uint32_t bits) { return __uint_as_float(bits); }
__device__ __forceinline__ uint32_t float_as_bits(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace trainlaunch::gpu

#endif

namespace trainlaunch::gpu {

constexpr int warp_size = 32;
constexpr unsigned all_lanes = 0xffffffffu;

// The upper half of an f32.
struct bf16 {
  uint16_t bits;
};

TL_DEVICE float widen(float x) { return x; }
TL_DEVICE float widen(bf16 x) { return bits_as_float(static_cast<uint32_t>(x.bits) << 16); }
TL_DEVICE double widen(double x) { return x; }

// To the type of a View, rounded to nearest even.
template <class T>
TL_DEVICE T narrow(double x) {
  return static_cast<T>(x);
}
template <class T>
TL_DEVICE T narrow(float x) {
  return static_cast<T>(x);
}
template <>
TL_DEVICE bf16 narrow<bf16>(float x) {
  return {static_cast<uint16_t>(pack_bf16(x, 0.0f))};
}
template <>
TL_DEVICE bf16 narrow<bf16>(double x) {
  return narrow<bf16>(static_cast<float>(x));
}

// N elements that are loaded and stored at once.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
  TL_DEVICE T& operator[](int i) { return v[i]; }
  TL_DEVICE const T& operator[](int i) const { return v[i]; }
};

template <class Word, class T, int N>
TL_DEVICE Pack<T, N> load_as(const T* p) {
  static_assert(sizeof(Word) == sizeof(Pack<T, N>));
  const Word word = *reinterpret_cast<const Word*>(p);
  Pack<T, N> pack;
  memcpy(&pack, &word, sizeof(word));
  return pack;
}
template <class Word, class T, int N>
TL_DEVICE void store_as(T* p, const Pack<T, N>& pack) {
  Word word;
  memcpy(&word, &pack, sizeof(word));
  *reinterpret_cast<Word*>(p) = word;
}
template <int N, class T>
TL_DEVICE Pack<T, N> load(const T* p) {
  if constexpr (sizeof(T) * N == 16) {
    return load_as<uint4, T, N>(p);
  } else if constexpr (sizeof(T) * N == 8 && N > 1) {
    return load_as<uint2, T, N>(p);
  } else {
    Pack<T, N> pack;
    for (int i = 0; i < N; ++i) pack[i] = p[i];
    return pack;
  }
}
template <int N, class T>
TL_DEVICE void store(T* p, const Pack<T, N>& pack) {
  if constexpr (sizeof(T) * N == 16) {
    store_as<uint4, T, N>(p, pack);
  } else if constexpr (sizeof(T) * N == 8 && N > 1) {
    store_as<uint2, T, N>(p, pack);
  } else {
    for (int i = 0; i < N; ++i) p[i] = pack[i];
  }
}

// The same sum, or maximum, in every lane; always added up in the same order.
template <class T>
TL_DEVICE T warp_sum(T x) {
  for (int step = warp_size / 2; step > 0; step /= 2) x += __shfl_xor_sync(all_lanes, x, step);
  return x;
}
TL_DEVICE float warp_max(float x) {
  for (int step = warp_size / 2; step > 0; step /= 2)
    x = fmaxf(x, __shfl_xor_sync(all_lanes, x, step));
  return x;
}
TL_DEVICE int lane_index() { return static_cast<int>(threadIdx.x) % warp_size; }
TL_DEVICE int warp_index() { return static_cast<int>(threadIdx.x) / warp_size; }

}  // namespace trainlaunch::gpu
