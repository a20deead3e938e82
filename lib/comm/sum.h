// The sums that communicators take.
#pragma once

#include <cstdint>
#include <span>

namespace trainlaunch {

// The sum over `ranks` ranks that follow one another: a branch of the tree, so that their number is
// a power of two and divides the number of ranks before them.
struct Branch {
  const float* p = nullptr;
  int ranks = 1;
};

// out[i] = ((in[0].p[i] + in[1].p[i]) + in[2].p[i]) + ... in f32. `out` may be one of the inputs,
// and overlaps none of them otherwise.
void sum_in_order(float* out, std::span<const Branch> in, int64_t n);

// The whole tree of SumOrder::tree over all ranks in `in`, from its branches in rank order. `out`
// may be one of them, and overlaps none of them otherwise.
void sum_as_tree(float* out, std::span<const Branch> in, int64_t n);

// x[i] to the nearest bf16, where it stays an f32.
void round_to_bf16(float* x, int64_t n);
// The same as n numbers of two bytes at the beginning of x, and back.
void pack_bf16(float* x, int64_t n);
void unpack_bf16(float* x, int64_t n);

}  // namespace trainlaunch
