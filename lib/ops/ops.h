// lib/ops: the tensor operations, behind one interface. This header is the folder's front door.
//
//   reference   every operation in f64, written to be read; what the others are tested against
//   cpu         f32 or bf16 on the host; oneDNN where the processor has a unit for bf16 products
//   cuda        the same interface on a stream of a GPU
//
// Operations are enqueued on a Stream and return at once; none reads device memory on the host.
// Shapes stand beside each View as [rows, cols]; B sequences of T tokens are rows = B*T; C is the
// width, H the heads, V the vocabulary. Token ids and targets are i32. Activations, their gradients
// and weights are of the implementation's dtype(). What sums are kept in is of its wide() type:
// gradients of parameters, the optimizer's state and master weights, a norm's mean and rstd,
// attention's lse. The two differ for bf16, whose wide type is f32; products and sums of bf16
// numbers are taken in f32.
// "accumulated" outputs are added to; all others are overwritten. Sums run in one fixed order for a
// given shape and thread count, so equal inputs give equal bits; SameBits says when the number of
// threads does not matter either. Inputs and outputs do not overlap
// except where it says so. Ids are below V, targets too: nobody checks them here.
//
// An implementation belongs to one thread and one Stream at a time, because of its scratch memory.
// Shapes that do not fit together, or exceed the limits that scratch was sized for, are errors in
// the caller (asserted). One for a device whose memory the host cannot read must besides
//   - enqueue everything, `count`, `loss` and the scalars of update included, and wait for nothing:
//     values that the host needs travel by Device::download and an Event;
//   - allocate nothing and do no search for the best kernel once every shape has been seen;
//   - add up in a fixed order (no atomics on floating-point numbers);
//   - leave errors to the Stream, whose next Event tells them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/base.h"

namespace trainlaunch {

// tanh form, as GPT-2 uses it: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
// (Hendrycks & Gimpel, "Gaussian Error Linear Units").
enum class Activation : uint8_t { none, gelu };

// One of
//   c = act(op(a) op(b) + bias)        a linear map
//   c = op(a) op(b) + bias + add       one that ends in the residual stream
//   c = (op(a) op(b)) gelu'(back)      the gradient of one that followed an activation
//   c = op(a) op(b), or c += it        the gradient of a weight, and with it that of the bias:
//                                      dbias += sums of b's columns. c is of the wide type
struct Gemm {
  View a;  // [m, k], or [k, m] when transposed_a
  View b;  // [k, n], or [n, k] when transposed_b
  View c;  // [m, n]
  bool transposed_a = false;
  bool transposed_b = false;
  bool accumulate = false;  // c +=
  View bias = {};           // [n], or null
  Activation act = Activation::none;
  View pre = {};    // [m, n]: op(a) op(b) + bias before the activation; null unless act
  View add = {};    // [m, n], or null
  View back = {};   // [m, n]: what the activation was applied to, or null
  View dbias = {};  // [n] of the wide type, accumulated, or null; null if transposed_b
};

// out[b,t] = tokens_table[tokens[b,t]] + positions_table[t]
struct Embed {
  View tokens;          // i32 [B, T]
  View token_table;     // [V, C]
  View position_table;  // [>= T, C]
  View out;             // [B*T, C]
};
struct EmbedBack {
  View tokens;           // i32 [B, T]
  View dout;             // [B*T, C]
  View dtoken_table;     // [V, C], accumulated
  View dposition_table;  // [>= T, C], accumulated
};

// Layer norm over the last dimension, epsilon 1e-5 (Ba et al., "Layer Normalization").
struct Norm {
  View x;           // [rows, C]
  View gain, bias;  // [C]
  View y;           // [rows, C]
  View mean, rstd;  // [rows], kept for the backward pass
};
struct NormBack {
  View x, dy;  // [rows, C]
  View gain, mean, rstd;
  View dx;            // [rows, C], accumulated: the residual stream's gradient is there already
  View dgain, dbias;  // [C], accumulated
};

// Causal self-attention with scale 1/sqrt(C/H). A row of qkv holds q, k and v one after the other,
// each of C = H heads one after the other, as GPT-2's checkpoints have it.
// Where the rows before `first` were computed earlier, only the others' results are wanted: the
// rows of qkv are then the cache of keys and values that text generation needs.
struct Attention {
  int64_t sequences, context, heads;
  View qkv;           // [B*T, 3C]
  View out;           // [B*(T-first), C]
  View lse;           // [B, H, T-first]: log of the sum of exponentials of a row's scores
  int64_t first = 0;  // the first query, of each sequence
};
struct AttentionBack {
  int64_t sequences, context, heads;
  View qkv, out, lse;  // as in forward
  View dout;           // [B*T, C]
  View dqkv;           // [B*T, 3C]
};

// Output logits x weight^T and their softmax cross-entropy in chunks of rows, so that all logits
// never exist at once. The gradient is that of the SUM of losses over unmasked targets: the
// division by the global number of targets happens once, in the update.
struct Head {
  View x;                  // [rows, C]
  View weight;             // [V, C]
  View targets;            // i32 [rows]; -1 is ignored
  View loss;               // f64 [1], accumulated: sum of -log p(target)
  View count;              // f64 [1], accumulated: number of unmasked targets
  View dx = {};            // [rows, C], or null: forward only
  View dweight = {};       // [V, C], null exactly when dx is
  bool accumulate = true;  // dweight +=
};

// AdamW (Loshchilov & Hutter), decay decoupled, on a run of parameters of one group:
//   g = grad * grad_scale;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
//   w -= lr * (weight_decay * w + (m / correction1) / (sqrt(v / correction2) + eps))
// Then copy = w, rounded to the nearest, or, stochastically, to either neighbour with a probability
// that makes the mean right: rounded_bf16(w, rounding_bits(seed, step, element)) of
// lib/ops/convert.h.
struct Rule {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.0f;
  bool stochastic = false;
  uint64_t seed = 0;
};
struct Slots {
  View weight, grad, m, v;  // [n], of the wide type
  View copy = {};  // [n], of dtype(): the weights that products read; null if they are `weight`
  uint64_t element = 0;  // the number of the first one in the whole space of parameters
};
// What changes from step to step, in memory of the device: f64 [update_scalars].
enum UpdateScalar {
  learning_rate,
  grad_scale,
  correction1,
  correction2,
  update_step,  // below 2^32
  update_scalars
};

// How large the shapes of a run get; the scratch memory is sized from it before anything runs.
struct OpsLimits {
  int64_t sequences = 0, context = 0, width = 0, heads = 0, vocab = 0;
};

class Ops {
 public:
  virtual ~Ops() = default;
  virtual const char* name() const = 0;
  virtual DType dtype() const = 0;  // of activations and weights
  DType wide() const { return dtype() == DType::bf16 ? DType::f32 : dtype(); }

  // Scratch memory that the operations share; u8 [scratch_bytes(limits)], given once before use.
  virtual size_t scratch_bytes(const OpsLimits& limits) const = 0;
  virtual void use_scratch(View scratch) = 0;

  virtual void gemm(Stream&, const Gemm&) = 0;
  virtual void embed(Stream&, const Embed&) = 0;
  virtual void embed_back(Stream&, const EmbedBack&) = 0;
  virtual void norm(Stream&, const Norm&) = 0;
  virtual void norm_back(Stream&, const NormBack&) = 0;
  virtual void attention(Stream&, const Attention&) = 0;
  virtual void attention_back(Stream&, const AttentionBack&) = 0;
  virtual void head_loss(Stream&, const Head&) = 0;

  // Converts between f32, f64 and bf16, to the nearest, halves to even.
  virtual void copy(Stream&, View from, View to) = 0;
  virtual void fill(Stream&, View v, double value) = 0;
  // dst = parts[0] + parts[1] + ..., in that order for every element, all of the wide type; dst may
  // be one of them.
  virtual void sum(Stream&, View dst, std::span<const View> parts) = 0;
  // out[i] = sum of squares of the i-th tile of `tile` elements of x, which is of the wide type;
  // f64 [size / tile].
  virtual void sumsq(Stream&, View x, int64_t tile, View out) = 0;
  virtual void update(Stream&, const Rule&, const Slots&, View scalars) = 0;
};

std::unique_ptr<Ops> make_reference_ops();
// `threads` 0: as many as the process may run on when it starts, or OMP_NUM_THREADS if that is set.
// `any_threads`: equal inputs give equal bits on any number of threads; where the processor has a
// matrix unit for bf16, products do not use it then.
// (Whatever is said here holds for one binary, one oneDNN and one instruction set.)
enum class SameBits : uint8_t { same_threads, any_threads };
// `dtype` is f32 or bf16.
std::unique_ptr<Ops> make_cpu_ops(int threads, SameBits bits = SameBits::same_threads,
                                  DType dtype = DType::f32);

}  // namespace trainlaunch
