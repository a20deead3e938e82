// The loops of the CPU operations, compiled once per instruction set and chosen when the program
// runs. Each does its share of an operation on one thread and knows nothing of the others.
//
// exp() here is off by less than 2 units in the last place over its whole range, flushes to zero
// below -87.3 where the result would be denormal, and stays at 2.4e38 above 88.3. NaN stays NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/base.h"

namespace trainlaunch {

// One head of one sequence. Rows are `stride` apart in qkv and `out_stride` apart in out, which
// begins with query `first`.
struct AttentionHead {
  int64_t context, width;  // of a head
  int64_t first;
  int64_t stride, out_stride;
  const float *q, *k, *v;
  float* out;
  float* lse;  // [context - first]
};
struct AttentionHeadBack {
  AttentionHead head;
  const float* dout;  // rows out_stride apart
  float *dq, *dk, *dv;
};

struct Adam {
  float beta1, beta2, rest1, rest2;    // rest: 1 - beta
  float grad_scale, rate, decay;       // learning rate; learning rate times weight decay
  float inverse1, root_inverse2, eps;  // 1 / correction1, 1 / sqrt(correction2)
};

struct Kernels {
  const char* name;  // "baseline", "avx2", "avx512"

  // Over n elements.
  void (*exp)(const float* x, float* y, int64_t n);
  void (*gelu)(const float* x, float* y, int64_t n);
  void (*gelu_back)(const float* x, const float* dy, float* dx, int64_t n);
  void (*add)(const float* a, const float* b, float* out, int64_t n);
  // Elements [begin, end) of f32 views; out may be one of them.
  void (*sum)(std::span<const View> parts, int64_t begin, int64_t end, float* out);
  double (*sumsq)(const float* x, int64_t n);
  void (*adam)(const Adam& a, const float* grad, float* weight, float* m, float* v, int64_t n);

  // Over whole rows.
  void (*norm)(const float* x, const float* gain, const float* bias, float* y, float* mean,
               float* rstd, int64_t rows, int64_t width);
  void (*norm_back)(const float* x, const float* dy, const float* gain, const float* mean,
                    const float* rstd, float* dx, int64_t rows, int64_t width);
  // One row of logits becomes softmax - [target]; returns -log p(target).
  double (*cross_entropy)(float* logits, int64_t vocab, int32_t target);

  // Over all rows, for the columns [begin, end) of rows that are `width` apart: sums down the
  // columns in row order, so that the bits do not depend on who does which columns.
  void (*norm_back_columns)(const float* x, const float* dy, const float* mean, const float* rstd,
                            int64_t rows, int64_t width, int64_t begin, int64_t end, float* dgain,
                            float* dbias);
  void (*bias_back_columns)(const float* dy, int64_t rows, int64_t width, int64_t begin,
                            int64_t end, float* dbias);

  // Queries [first + block * attention_block, ...) of a head; scratch of attention_floats(width).
  void (*attention)(const AttentionHead& head, int64_t block, float* scratch);
  // A whole head; scratch of attention_back_floats(width, context).
  void (*attention_back)(const AttentionHeadBack& head, float* scratch);
};

// Elements and columns may be divided among threads at multiples of this. A kernel takes them in
// groups, and what is left by other code, whose roundings the compiler may choose otherwise (it
// fuses a multiplication and an addition in one loop and not in the next). With whole groups, who
// does which does not show in the bits.
inline constexpr int64_t kernel_unit = 64;

inline constexpr int64_t attention_block = 64;
int64_t attention_floats(int64_t width);
int64_t attention_back_floats(int64_t width, int64_t context);

// Those that this machine can run, best first; never empty.
std::span<const Kernels> kernels();

}  // namespace trainlaunch
