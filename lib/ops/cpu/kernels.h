// The loops of the CPU operations, compiled once per instruction set and type of activations, and
// chosen when the program runs. Each does its share of an operation on one thread and knows nothing
// of the others. All of them compute in f32, whatever type they read and write.
//
// exp() here is off by less than 2 units in the last place over its whole range, flushes to zero
// below -87.3 where the result would be denormal, and stays at 2.4e38 above 88.3. NaN stays NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/base.h"

namespace trainlaunch {

// c = op(a) op(b), then what Gemm of ops.h says, for rows and columns that are a part of it. Every
// sum runs over k in an order that depends on k alone, so the bits do not depend on the cutting as
// long as parts begin at multiples of product_row_unit and product_column_unit.
template <class T>
struct Product {
  int64_t m, n, k;
  const T *a, *b;
  bool transposed_a, transposed_b;
  int64_t a_stride, b_stride;  // from one row to the next, as they lie in memory
  // c goes to one of these; its rows, and those of pre, add and back, are `stride` apart.
  float* wide_c;
  T* c;
  int64_t stride;
  bool accumulate;  // only with wide_c
  const T *bias, *add, *back;
  T* pre;
  bool gelu;
  float* column_sums;  // of b are added here, or null
};
inline constexpr int64_t product_row_unit = 16, product_column_unit = 48;
// Scratch of a product, in floats. `wide`: its result is f32, so that sums can wait in it.
int64_t product_floats(int64_t m, int64_t n, int64_t k, bool wide);

// One head of one sequence. Rows are `stride` apart in qkv and `out_stride` apart in out, which
// begins with query `first`.
template <class T>
struct AttentionHead {
  int64_t context, width;  // of a head
  int64_t first;
  int64_t stride, out_stride;
  const T *q, *k, *v;
  T* out;
  float* lse;  // [context - first], or null
};
template <class T>
struct AttentionHeadBack {
  AttentionHead<T> head;
  const T* dout;  // rows out_stride apart
  T *dq, *dk, *dv;
};

struct Adam {
  float beta1, beta2, rest1, rest2;    // rest: 1 - beta
  float grad_scale, rate, decay;       // learning rate; learning rate times weight decay
  float inverse1, root_inverse2, eps;  // 1 / correction1, 1 / sqrt(correction2)
};

// Those that read or write activations or weights, of type T.
template <class T>
struct Loops {
  // Over n elements.
  void (*gelu)(const T* x, T* y, int64_t n);
  void (*gelu_back)(const T* x, const T* dy, T* dx, int64_t n);
  void (*add)(const T* a, const T* b, T* out, int64_t n);
  void (*accumulate)(const T* x, float* sum, int64_t n);
  void (*narrow)(const float* x, T* y, int64_t n);  // to the nearest, halves to even

  // Over whole rows.
  void (*norm)(const T* x, const T* gain, const T* bias, T* y, float* mean, float* rstd,
               int64_t rows, int64_t width);
  void (*norm_back)(const T* x, const T* dy, const T* gain, const float* mean, const float* rstd,
                    T* dx, int64_t rows, int64_t width);
  // gradient = softmax(logits) - [target], which may be the logits' memory where T is float;
  // returns -log p(target).
  double (*cross_entropy)(float* logits, int64_t vocab, int32_t target, T* gradient);

  // Over all rows, for the columns [begin, end) of rows that are `width` apart: sums down the
  // columns in row order, so that the bits do not depend on who does which columns.
  void (*norm_back_columns)(const T* x, const T* dy, const float* mean, const float* rstd,
                            int64_t rows, int64_t width, int64_t begin, int64_t end, float* dgain,
                            float* dbias);
  void (*bias_back_columns)(const T* dy, int64_t rows, int64_t width, int64_t begin, int64_t end,
                            float* dbias);

  // Scratch of product_floats().
  void (*product)(const Product<T>& product, float* scratch);
  // One of so many parts of a head's queries; scratch of attention_floats(width, context).
  void (*attention)(const AttentionHead<T>& head, int64_t part, int64_t parts, float* scratch);
  // A whole head; scratch of attention_back_floats(width, context).
  void (*attention_back)(const AttentionHeadBack<T>& head, float* scratch);
};

struct Kernels {
  const char* name;  // "baseline", "avx2", "avx512"
  Loops<float> f32;
  Loops<Bf16> bf16;

  // Over n elements.
  void (*exp)(const float* x, float* y, int64_t n);
  // Elements [begin, end) of f32 views; out may be one of them.
  void (*sum)(std::span<const View> parts, int64_t begin, int64_t end, float* out);
  double (*sumsq)(const float* x, int64_t n);
  void (*adam)(const Adam& a, const float* grad, float* weight, float* m, float* v, int64_t n);
};

template <class T>
const Loops<T>& loops_of(const Kernels& kernels) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return kernels.f32;
  } else {
    return kernels.bf16;
  }
}

// Elements and columns may be divided among threads at multiples of this. A kernel takes them in
// groups, and what is left by other code, whose roundings the compiler may choose otherwise (it
// fuses a multiplication and an addition in one loop and not in the next). With whole groups, who
// does which does not show in the bits.
inline constexpr int64_t kernel_unit = 64;

// Queries that attention works on at a time, and keys; and both in the backward pass.
inline constexpr int64_t attention_queries = 32, attention_keys = 128;
inline constexpr int64_t attention_back_queries = 64, attention_back_keys = 64;
int64_t attention_floats(int64_t width, int64_t context);
int64_t attention_back_floats(int64_t width, int64_t context);

// Those that this machine can run, best first; never empty.
std::span<const Kernels> kernels();

}  // namespace trainlaunch
