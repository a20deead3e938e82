// Matrix products by oneDNN. Only dnnl.cc sees its headers; both its 2.x and 3.x interfaces do.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/base.h"

namespace trainlaunch {

// c = op(a) op(b), or c += op(a) op(b); row-major and dense. What oneDNN compiles for a shape is
// kept for the next call with it, so a run should have few shapes. Equal inputs give equal bits for
// one shape and number of threads: oneDNN may split the sum over k among threads.
class Matmul {
 public:
  struct Shape {
    int64_t m, n, k;
    bool transposed_a = false, transposed_b = false;
    bool accumulate = false;
    DType type = DType::f32;    // of a and b: f32 or bf16
    DType result = DType::f32;  // of c: f32, or bf16 if a and b are
    auto operator<=>(const Shape&) const = default;
  };

  // Whether this processor multiplies bf16 numbers faster than f32 ones: those with a matrix unit
  // do, and AMD's. (The dot product of Intel's cores takes two cycles where two f32 products take
  // one.)
  static bool has_fast_bf16();

  explicit Matmul(int threads);
  Matmul(Matmul&&) noexcept;
  ~Matmul();

  // Scratch memory that a product of this shape works in.
  size_t scratch_bytes(const Shape& shape) const;

  // Where scratch is too small, oneDNN allocates memory of its own in every call. False, with c
  // as it was, where it has no kernel (k is 0, memory is full, the processor unknown).
  bool run(const Shape& shape, const void* a, const void* b, void* c, std::span<std::byte> scratch);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainlaunch
