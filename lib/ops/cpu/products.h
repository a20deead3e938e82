// Matrix products on a team of threads.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ops/cpu/dnnl.h"
#include "ops/cpu/team.h"
#include "ops/ops.h"

namespace trainlaunch {

// SameBits::same_threads: each product is one call of oneDNN, on all threads. any_threads: its rows
// are cut into parts that depend on its shape alone, and each part is a call on one thread, since
// oneDNN cuts the sum over k by the number of threads that it is given.
class Products {
 public:
  Products(const Team& team, SameBits bits);

  // As of Matmul.
  size_t scratch_bytes(const Matmul::Shape& shape) const;
  void run(const Matmul::Shape& shape, const float* a, const float* b, const float* bias, float* c,
           std::span<std::byte> scratch);

 private:
  const Team& team_;
  const bool in_parts_;
  std::vector<Matmul> matmuls_;  // one for each thread, or one for all
};

}  // namespace trainlaunch
