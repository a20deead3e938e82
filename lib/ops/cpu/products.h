// Matrix products on a team of threads.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "ops/cpu/dnnl.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/team.h"
#include "ops/ops.h"

namespace trainlaunch {

// By the kernels: each thread computes a part of c, in scratch memory of its own. The sum over k is
// never divided, so equal inputs give equal bits on any number of threads.
// By oneDNN: products of bf16 on processors that are faster at them than at f32, unless equal bits
// on any number of threads are asked for.
enum class ProductsBy : uint8_t { kernels, library };
template <class T>
ProductsBy best_products(SameBits bits);

template <class T>
class Products {
 public:
  Products(const Team& team, const Kernels& kernels, ProductsBy by)
      : team_(team), loops_(loops_of<T>(kernels)) {
    if (by == ProductsBy::library) library_.emplace(team.size());
  }

  // Of a product [m, k] [k, n] whose result is of type T, with b transposed or not, and of the
  // gradient [k, n] of its b, which is f32.
  size_t scratch_bytes(int64_t m, int64_t n, int64_t k) const;
  // Where scratch is too small, memory is allocated in every call.
  void run(const Product<T>& product, std::span<std::byte> scratch);

 private:
  void run_kernels(const Product<T>& product, std::span<std::byte> scratch) const;
  bool run_library(const Product<T>& product, std::span<std::byte> scratch);

  const Team& team_;
  const Loops<T>& loops_;
  std::optional<Matmul> library_;
};

}  // namespace trainlaunch
