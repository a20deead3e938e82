// Where one head of one sequence lies: block (., head, sequence) of a grid works on it.
#pragma once

#include "ops/cuda/dispatch.h"
#include "ops/cuda/kernels.h"

namespace trainlaunch::gpu {

struct HeadPlace {
  int context, first, width;  // of a head
  int64_t all;                // width of all heads
  float scale;

  TL_DEVICE int64_t stride() const { return 3 * all; }
  TL_DEVICE int64_t offset() const {  // of the head's queries in qkv
    return static_cast<int64_t>(blockIdx.z) * context * stride() +
           static_cast<int64_t>(blockIdx.y) * width;
  }
  TL_DEVICE int64_t out_offset() const {  // in what has a row for each query
    return static_cast<int64_t>(blockIdx.z) * (context - first) * all +
           static_cast<int64_t>(blockIdx.y) * width;
  }
  TL_DEVICE int64_t row_offset() const {  // in lse and delta
    return (static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * (context - first);
  }
};

inline HeadPlace place_of(const AttentionShape& s) {
  return {static_cast<int>(s.context), static_cast<int>(s.first), static_cast<int>(s.width),
          s.heads * s.width, 1.0f / sqrtf(static_cast<float>(s.width))};
}
// A block for each `rows` queries of each head.
inline dim3 grid_of(const AttentionShape& s, int rows) {
  return dim3(blocks(divide_up(s.context - s.first, rows)), blocks(s.heads), blocks(s.sequences));
}

}  // namespace trainlaunch::gpu
