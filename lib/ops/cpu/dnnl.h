// Matrix products by oneDNN. Only dnnl.cc sees its headers; both its 2.x and 3.x interfaces do.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace trainlaunch {

// c = op(a) op(b) + bias, or c += op(a) op(b); all f32, row-major and dense. What oneDNN compiles
// for a shape is kept for the next call with it, so a run should have few shapes. Equal inputs give
// equal bits for one shape and number of threads: oneDNN may split the sum over k among threads.
class Matmul {
 public:
  struct Shape {
    int64_t m, n, k;
    bool transposed_a = false, transposed_b = false;
    bool accumulate = false;  // then without bias
    bool bias = false;
    int64_t stride_a = 0;  // from one row of `a` as it lies there to the next; 0: they are dense
    auto operator<=>(const Shape&) const = default;
  };

  explicit Matmul(int threads);
  Matmul(Matmul&&) noexcept;
  ~Matmul();

  // Scratch memory that a product of this shape works in.
  size_t scratch_bytes(const Shape& shape) const;

  // Where scratch is too small, oneDNN allocates memory of its own in every call. Where it has no
  // kernel at all (k is 0, memory is full, the processor unknown), plain loops do the work.
  void run(const Shape& shape, const float* a, const float* b, const float* bias, float* c,
           std::span<std::byte> scratch);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainlaunch
