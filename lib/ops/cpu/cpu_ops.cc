// The operations in f32 on the host: which loop of kernels.h or product of oneDNN does which part,
// on how many threads, in which piece of scratch memory.

#include "ops/cpu/cpu_ops.h"

#include <omp.h>

#include <algorithm>
#include <cassert>
#include <cmath>

#include "ops/convert.h"
#include "ops/cpu/products.h"
#include "ops/cpu/team.h"

namespace trainlaunch {

namespace {

constexpr int64_t cache_line = 16;  // floats

// Rows of logits that exist at once: enough to pay for reading weight and adding to dweight as a
// whole each time, and about 4 MiB of them where the vocabulary is small.
int64_t head_chunk(int64_t rows, int64_t vocab) {
  return std::min(rows, std::max<int64_t>(256, (int64_t{1} << 20) / vocab));
}

// Scratch of head_loss: the losses of a chunk's rows, its logits, and what products need.
size_t head_loss_bytes(int64_t chunk) {
  return static_cast<size_t>((chunk + cache_line - 1) / cache_line * cache_line) * sizeof(double);
}
size_t head_logits_bytes(int64_t chunk, int64_t vocab) {
  return static_cast<size_t>((chunk * vocab + cache_line - 1) / cache_line * cache_line) *
         sizeof(float);
}

class CpuOps final : public Ops {
 public:
  CpuOps(int threads, const Kernels& kernels, SameBits bits)
      : team_(threads), kernels_(kernels), products_(team_, bits) {}

  const char* name() const override { return "cpu"; }
  DType dtype() const override { return DType::f32; }

  // The products of a transformer are those of its width, three times and four times that, and the
  // vocabulary; other shapes work, and let oneDNN allocate what does not fit.
  size_t scratch_bytes(const OpsLimits& limits) const override {
    const int64_t rows = limits.sequences * limits.context, width = limits.width;
    const int64_t chunk = head_chunk(rows, limits.vocab);
    size_t products = 0;
    for (const int64_t out : {width, 3 * width, 4 * width}) {
      products =
          std::max({products, product_bytes(rows, out, width), product_bytes(rows, width, out)});
    }
    const size_t head = head_loss_bytes(chunk) + head_logits_bytes(chunk, limits.vocab) +
                        product_bytes(chunk, limits.vocab, width);
    const int64_t head_width = width / limits.heads;
    const size_t attention =
        sizeof(float) * static_cast<size_t>(team_.size()) *
        static_cast<size_t>(std::max(attention_floats(head_width),
                                     attention_back_floats(head_width, limits.context)));
    return std::max({products, head, attention});
  }
  void use_scratch(View scratch) override {
    scratch_ = {static_cast<std::byte*>(scratch.p), scratch.bytes()};
  }

  void gemm(Stream& stream, const Gemm& g) override {
    const bool gelu = g.act == Activation::gelu;
    assert(!(g.accumulate && (g.bias || gelu || g.add || g.back)));
    const View out = gelu && g.pre ? g.pre : g.c;
    const Matmul::Shape shape{.m = g.c.rows(),
                              .n = g.c.cols(),
                              .k = g.transposed_a ? g.a.rows() : g.a.cols(),
                              .transposed_a = g.transposed_a,
                              .transposed_b = g.transposed_b,
                              .accumulate = g.accumulate,
                              .bias = static_cast<bool>(g.bias)};
    assert(g.a.size() == shape.m * shape.k && g.b.size() == shape.k * shape.n);
    products_.run(shape, g.a.as<float>(), g.b.as<float>(), g.bias.as<float>(), out.as<float>(),
                  scratch_);
    if (g.add) add(stream, g.c, g.add, g.c);
    if (g.back) gelu_back(stream, g.back, g.c, g.c);
    if (!gelu) return;
    const float* pre = out.as<float>();
    float* y = g.c.as<float>();
    team_.split(g.c.size(), kernel_unit, 4 * g.c.size(), [&](int64_t begin, int64_t end) {
      kernels_.gelu(pre + begin, y + begin, end - begin);
    });
  }

  void bias_back(Stream&, View dy, View dbias) override {
    team_.split(dy.cols(), kernel_unit, dy.size(), [&](int64_t begin, int64_t end) {
      kernels_.bias_back_columns(dy.as<float>(), dy.rows(), dy.cols(), begin, end,
                                 dbias.as<float>());
    });
  }

  void gelu_back(Stream&, View pre, View dy, View dx) override {
    team_.split(pre.size(), kernel_unit, 4 * pre.size(), [&](int64_t begin, int64_t end) {
      kernels_.gelu_back(pre.as<float>() + begin, dy.as<float>() + begin, dx.as<float>() + begin,
                         end - begin);
    });
  }

  void embed(Stream&, const Embed& e) override {
    const int64_t context = e.tokens.cols(), width = e.out.cols();
    team_.split(e.tokens.size(), 1, e.out.size(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        kernels_.add(e.token_table.as<float>() + e.tokens.as<int32_t>()[row] * width,
                     e.position_table.as<float>() + row % context * width,
                     e.out.as<float>() + row * width, width);
      }
    });
  }

  // Threads share the columns, not the rows: two rows may have the same token.
  void embed_back(Stream&, const EmbedBack& e) override {
    const int64_t context = e.tokens.cols(), width = e.dout.cols();
    team_.split(width, kernel_unit, 2 * e.dout.size(), [&](int64_t begin, int64_t end) {
      for (int64_t row = 0; row < e.tokens.size(); ++row) {
        const float* dout = e.dout.as<float>() + row * width + begin;
        float* dtoken = e.dtoken_table.as<float>() + e.tokens.as<int32_t>()[row] * width + begin;
        float* dposition = e.dposition_table.as<float>() + row % context * width + begin;
        kernels_.add(dtoken, dout, dtoken, end - begin);
        kernels_.add(dposition, dout, dposition, end - begin);
      }
    });
  }

  void norm(Stream&, const Norm& o) override {
    const int64_t width = o.x.cols();
    team_.split(o.x.rows(), 1, 2 * o.x.size(), [&](int64_t begin, int64_t end) {
      kernels_.norm(o.x.as<float>() + begin * width, o.gain.as<float>(), o.bias.as<float>(),
                    o.y.as<float>() + begin * width, o.mean.as<float>() + begin,
                    o.rstd.as<float>() + begin, end - begin, width);
    });
  }

  void norm_back(Stream&, const NormBack& o) override {
    const int64_t rows = o.x.rows(), width = o.x.cols();
    const float *x = o.x.as<float>(), *dy = o.dy.as<float>();
    const float *mean = o.mean.as<float>(), *rstd = o.rstd.as<float>();
    team_.split(width, kernel_unit, 2 * o.x.size(), [&](int64_t begin, int64_t end) {
      kernels_.norm_back_columns(x, dy, mean, rstd, rows, width, begin, end, o.dgain.as<float>(),
                                 o.dbias.as<float>());
    });
    team_.split(rows, 1, 2 * o.x.size(), [&](int64_t begin, int64_t end) {
      kernels_.norm_back(x + begin * width, dy + begin * width, o.gain.as<float>(), mean + begin,
                         rstd + begin, o.dx.as<float>() + begin * width, end - begin, width);
    });
  }

  // The last blocks of queries see the most keys, so they come first.
  void attention(Stream&, const Attention& o) override {
    const int64_t blocks = (o.context - o.first + attention_block - 1) / attention_block;
    const int64_t pairs = o.sequences * o.heads;
    const int64_t floats = attention_floats(o.out.cols() / o.heads);
    float* scratch = scratch_floats(team_.size() * floats);
    team_.each(pairs * blocks, [&](int64_t i, int thread) {
      kernels_.attention(head(o, i % pairs), blocks - 1 - i / pairs, scratch + thread * floats);
    });
  }

  void attention_back(Stream&, const AttentionBack& o) override {
    const int64_t floats = attention_back_floats(o.out.cols() / o.heads, o.context);
    float* scratch = scratch_floats(team_.size() * floats);
    team_.each(o.sequences * o.heads, [&](int64_t pair, int thread) {
      AttentionHeadBack back;
      back.head = head({o.sequences, o.context, o.heads, o.qkv, o.out, o.lse}, pair);
      back.dout = o.dout.as<float>() + (back.head.out - o.out.as<float>());
      back.dq = o.dqkv.as<float>() + (back.head.q - o.qkv.as<float>());
      back.dk = back.dq + (back.head.k - back.head.q);
      back.dv = back.dq + (back.head.v - back.head.q);
      kernels_.attention_back(back, scratch + thread * floats);
    });
  }

  void head_loss(Stream&, const Head& o) override {
    const int64_t rows = o.x.rows(), width = o.x.cols(), vocab = o.weight.rows();
    const int64_t chunk = head_chunk(rows, vocab);
    const size_t front = head_loss_bytes(chunk), back = head_logits_bytes(chunk, vocab);
    assert(front + back <= scratch_.size());
    double* losses = reinterpret_cast<double*>(scratch_.data());
    float* logits = reinterpret_cast<float*>(scratch_.data() + front);
    const auto rest = scratch_.subspan(front + back);
    for (int64_t first = 0; first < rows; first += chunk) {
      const int64_t m = std::min(chunk, rows - first);
      const float* x = o.x.as<float>() + first * width;
      const int32_t* targets = o.targets.as<int32_t>() + first;
      products_.run({.m = m, .n = vocab, .k = width, .transposed_b = true}, x, o.weight.as<float>(),
                    nullptr, logits, rest);
      team_.split(m, 1, 4 * m * vocab, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          losses[i] = row_loss(logits + i * vocab, vocab, targets[i]);
        }
      });
      for (int64_t i = 0; i < m; ++i) {
        o.loss.as<double>()[0] += losses[i];
        o.count.as<double>()[0] += targets[i] >= 0;
      }
      if (!o.dx) continue;
      products_.run({.m = m, .n = width, .k = vocab}, logits, o.weight.as<float>(), nullptr,
                    o.dx.as<float>() + first * width, rest);
      products_.run({.m = vocab, .n = width, .k = m, .transposed_a = true, .accumulate = true},
                    logits, x, nullptr, o.dweight.as<float>(), rest);
    }
  }

  void add(Stream&, View a, View b, View out) override {
    team_.split(out.size(), kernel_unit, out.size(), [&](int64_t begin, int64_t end) {
      kernels_.add(a.as<float>() + begin, b.as<float>() + begin, out.as<float>() + begin,
                   end - begin);
    });
  }

  void copy(Stream&, View from, View to) override {
    team_.split(to.size(), kernel_unit, to.size(),
                [&](int64_t begin, int64_t end) { convert(from, to, begin, end); });
  }

  void fill(Stream&, View v, double value) override {
    team_.split(v.size(), kernel_unit, v.size(),
                [&](int64_t begin, int64_t end) { trainlaunch::fill(v, value, begin, end); });
  }

  void sum(Stream&, View dst, std::span<const View> parts) override {
    team_.split(
        dst.size(), kernel_unit, dst.size() * static_cast<int64_t>(parts.size()),
        [&](int64_t begin, int64_t end) { kernels_.sum(parts, begin, end, dst.as<float>()); });
  }

  void sumsq(Stream&, View x, int64_t tile, View out) override {
    assert(out.size() * tile == x.size());
    team_.split(out.size(), 1, x.size(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        out.as<double>()[i] = kernels_.sumsq(x.as<float>() + i * tile, tile);
      }
    });
  }

  void update(Stream&, const Rule& rule, const Slots& slots, View scalars) override {
    assert(!slots.copy);
    const double* scalar = scalars.as<double>();
    const Adam adam{.beta1 = rule.beta1,
                    .beta2 = rule.beta2,
                    .rest1 = static_cast<float>(1.0 - rule.beta1),
                    .rest2 = static_cast<float>(1.0 - rule.beta2),
                    .grad_scale = static_cast<float>(scalar[grad_scale]),
                    .rate = static_cast<float>(scalar[learning_rate]),
                    .decay = static_cast<float>(scalar[learning_rate] * rule.weight_decay),
                    .inverse1 = static_cast<float>(1.0 / scalar[correction1]),
                    .root_inverse2 = static_cast<float>(1.0 / std::sqrt(scalar[correction2])),
                    .eps = rule.eps};
    team_.split(
        slots.weight.size(), kernel_unit, 4 * slots.weight.size(), [&](int64_t begin, int64_t end) {
          kernels_.adam(adam, slots.grad.as<float>() + begin, slots.weight.as<float>() + begin,
                        slots.m.as<float>() + begin, slots.v.as<float>() + begin, end - begin);
        });
  }

 private:
  // What a product [m, n] of k and the two of its backward pass work in.
  size_t product_bytes(int64_t m, int64_t n, int64_t k) const {
    size_t most = 0;
    for (const bool transposed : {false, true}) {  // either way a model may keep its weights
      most = std::max(
          {most, products_.scratch_bytes({.m = m, .n = n, .k = k, .transposed_b = transposed}),
           products_.scratch_bytes({.m = m, .n = k, .k = n, .transposed_b = transposed})});
    }
    for (const auto& [rows, cols] : {std::pair(n, k), std::pair(k, n)}) {
      most = std::max(
          most, products_.scratch_bytes(
                    {.m = rows, .n = cols, .k = m, .transposed_a = true, .accumulate = true}));
    }
    return most;
  }

  float* scratch_floats(int64_t floats) const {
    assert(static_cast<size_t>(floats) * sizeof(float) <= scratch_.size());
    return reinterpret_cast<float*>(scratch_.data());
  }

  // The pair-th of the heads of all sequences.
  static AttentionHead head(const Attention& o, int64_t pair) {
    const int64_t sequence = pair / o.heads, all = o.out.cols(), width = all / o.heads;
    const int64_t column = pair % o.heads * width, queries = o.context - o.first;
    const float* q = o.qkv.as<float>() + sequence * o.context * o.qkv.cols() + column;
    return {.context = o.context,
            .width = width,
            .first = o.first,
            .stride = o.qkv.cols(),
            .out_stride = all,
            .q = q,
            .k = q + all,
            .v = q + 2 * all,
            .out = o.out.as<float>() + sequence * queries * all + column,
            .lse = o.lse.as<float>() + pair * queries};
  }

  double row_loss(float* logits, int64_t vocab, int32_t target) const {
    assert(target < vocab);
    if (target >= 0) return kernels_.cross_entropy(logits, vocab, target);
    std::fill(logits, logits + vocab, 0.0f);
    return 0;
  }

  Team team_;
  const Kernels& kernels_;
  Products products_;
  std::span<std::byte> scratch_;
};

}  // namespace

std::unique_ptr<Ops> make_cpu_ops(int threads, const Kernels& kernels, SameBits bits) {
  return std::make_unique<CpuOps>(threads > 0 ? threads : omp_get_max_threads(), kernels, bits);
}

std::unique_ptr<Ops> make_cpu_ops(int threads, SameBits bits) {
  return make_cpu_ops(threads, kernels().front(), bits);
}

}  // namespace trainlaunch
