// From Views, whose type is known when the program runs, to kernels, which are compiled for a type.
#pragma once

#include <cassert>
#include <initializer_list>

#include "base/view.h"
#include "ops/cuda/simt.h"

namespace trainlaunch::gpu {

template <class T>
T* pointer(View v) {
  return static_cast<T*>(v.p);
}

// Calls f with a number of the type, f32 or bf16.
template <class F>
void with_type(DType t, const F& f) {
  assert(t == DType::f32 || t == DType::bf16);
  if (t == DType::bf16) return f(bf16{});
  f(float{});
}

// Sixteen bytes at a time can be used where every pointer, and the length of a row, allow it.
inline bool sixteen(int64_t row_bytes, std::initializer_list<const void*> pointers) {
  bool all = row_bytes % 16 == 0;
  for (const void* p : pointers) all = all && reinterpret_cast<uintptr_t>(p) % 16 == 0;
  return all;
}

template <int n>
struct Width {
  static constexpr int value = n;
};
// Calls f with how many elements of type T it shall load at once: 16 bytes of them, or one.
template <class T, class F>
void with_width(bool packed, const F& f) {
  if (packed) return f(Width<16 / sizeof(T)>());
  f(Width<1>());
}

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline unsigned blocks(int64_t n) { return static_cast<unsigned>(n); }

}  // namespace trainlaunch::gpu
