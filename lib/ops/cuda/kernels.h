// The kernels of the CUDA operations: each function enqueues one operation, or a part of one, on a
// stream (a cudaStream_t) and returns. Plain C++ to those who call them. Views are f32 or bf16, all
// of a call alike, unless said otherwise; "f32" and "f64" stay what they are.
#pragma once

#include <cstdint>

#include "base/view.h"

namespace trainlaunch::gpu {

// elementwise.cu

// Between f32, f64 and bf16, or the same type.
void convert(void* stream, View from, View to);
void fill(void* stream, View v, double value);  // any type

constexpr int most_parts = 64;
// dst = parts[0] + parts[1] + ... in f32.
void sum(void* stream, View dst, const View* parts, int count);

// What follows a product that stands in c [m, n], in this order; null Views are left out.
struct Finish {
  View c;
  View bias;          // [n]: c += bias
  View pre;           // [m, n] = c
  bool gelu = false;  // c = gelu(c)
  View add;           // [m, n]: c += add
  View back;          // [m, n]: c *= gelu'(back)
};
void finish(void* stream, const Finish& f);

// See Rule and Slots in ops/ops.h; the copy is bf16 or null. Where the scalars of a step are on the
// device:
struct AdamScalars {
  const double *learning_rate, *grad_scale, *correction1, *correction2, *step;
};
struct Adam {
  float beta1, beta2, eps, weight_decay;
  bool stochastic;
  uint64_t seed, element;
  View weight, grad, m, v;  // f32 [n]
  View copy;
  AdamScalars scalars;
};
void adam(void* stream, const Adam& a);

// rows.cu

void norm(void* stream, View x, View gain, View bias, View y, View mean,
          View rstd);  // f32 mean, rstd
// dx += ...; mean and rstd f32
void norm_back(void* stream, View x, View dy, View gain, View mean, View rstd, View dx);

// Sums over rows are taken in blocks of them, whose partial sums lie in scratch: f32
// [2 * column_chunks(rows) * columns].
int64_t column_chunks(int64_t rows);
// dbias += sum of dy's rows; f32 dbias
void bias_back(void* stream, View dy, View dbias, float* scratch);
// dgain += sum over rows of dy (x - mean) rstd, dbias += sum of dy; f32 but for x and dy
void norm_back_columns(void* stream, View x, View dy, View mean, View rstd, View dgain, View dbias,
                       float* scratch);

// out[i] (f64) = sum of squares of the i-th tile of x (f32)
void sumsq(void* stream, View x, int64_t tile, View out);

// Rows of logits, `stride` elements apart, become d(loss)/d(logits) if `gradient`; losses[row] =
// -log p(target), in f64, and 0 where the target is -1.
struct CrossEntropy {
  View logits;  // [rows, stride]
  int64_t vocab;
  const int32_t* targets;
  double* losses;
  bool gradient;
};
void cross_entropy(void* stream, const CrossEntropy& c);
// loss += sum of losses, count += number of targets that are not -1.
void add_losses(void* stream, const double* losses, const int32_t* targets, int64_t rows,
                double* loss, double* count);

// embed.cu

void embed(void* stream, const int32_t* tokens, int64_t rows, int64_t context, View token_table,
           View position_table, View out);
// f32 tables, accumulated. Scratch: i32 [2 * rows].
void embed_back(void* stream, const int32_t* tokens, int64_t rows, int64_t context, View dout,
                View dtoken_table, View dposition_table, int32_t* scratch);

// attention.cu: scalar products, any width of a head up to most_head_width; attention_mma.cu: bf16
// on tensor cores, up to most_tensor_width.

constexpr int64_t most_head_width = 256, most_tensor_width = 128;

struct AttentionShape {
  int64_t sequences, context, heads, width;  // of a head
  int64_t first = 0;                         // the queries before it are left out, and of out too
};
struct AttentionForward {
  AttentionShape shape;
  View qkv, out;
  float* lse;  // [B, H, T - first], or null
};
struct AttentionBackward {
  AttentionShape shape;
  View qkv, dout, dqkv;
  const float *lse, *delta;  // [B, H, T]
};
void attention(void* stream, const AttentionForward& a);
void attention_tensor(void* stream, const AttentionForward& a);
// delta[b, h, t] = out . dout
void attention_delta(void* stream, const AttentionShape& shape, View out, View dout, float* delta);
void attention_back(void* stream, const AttentionBackward& a);
void attention_back_tensor(void* stream, const AttentionBackward& a);

}  // namespace trainlaunch::gpu
