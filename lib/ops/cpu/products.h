// Matrix products on a team of threads.
#pragma once

#include <cstddef>
#include <span>

#include "ops/cpu/kernels.h"
#include "ops/cpu/team.h"
#include "ops/ops.h"

namespace trainlaunch {

// Each thread computes a part of c, in scratch memory of its own. The sum over k is never divided,
// so equal inputs give equal bits on any number of threads.
template <class T>
class Products {
 public:
  Products(const Team& team, const Kernels& kernels, SameBits) : team_(team), loops_(loops_of<T>(kernels)) {}

  size_t scratch_bytes(int64_t m, int64_t n, int64_t k) const {
    return sizeof(float) * static_cast<size_t>(team_.size() * product_floats(m, n, k));
  }
  // Where scratch is too small, memory is allocated in every call.
  void run(const Product<T>& product, std::span<std::byte> scratch) const;

 private:
  const Team& team_;
  const Loops<T>& loops_;
};

}  // namespace trainlaunch
