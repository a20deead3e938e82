// The operations on the host: which loop of kernels.h does which part, on how many threads, in
// which piece of scratch memory.

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

constexpr size_t cache_line = 64;
size_t whole_lines(size_t bytes) { return (bytes + cache_line - 1) / cache_line * cache_line; }

// Rows of logits that exist at once: enough to pay for reading weight and adding to dweight as a
// whole each time, and about 4 MiB of them where the vocabulary is small.
int64_t head_chunk(int64_t rows, int64_t vocab) {
  return std::min(rows, std::max<int64_t>(256, (int64_t{1} << 20) / vocab));
}

// Activations and weights are of type T.
template <class T>
class CpuOps final : public Ops {
  static constexpr bool is_wide = sizeof(T) == sizeof(float);

 public:
  CpuOps(int threads, const Kernels& kernels, ProductsBy by)
      : team_(threads),
        kernels_(kernels),
        loops_(loops_of<T>(kernels)),
        products_(team_, kernels, by) {}

  const char* name() const override { return "cpu"; }
  DType dtype() const override { return dtype_of<T>; }

  size_t scratch_bytes(const OpsLimits& limits) const override {
    const int64_t rows = limits.sequences * limits.context, width = limits.width;
    const HeadScratch head(head_chunk(rows, limits.vocab), limits.vocab);
    const int64_t head_width = width / limits.heads;
    const size_t attention =
        sizeof(float) * static_cast<size_t>(team_.size()) *
        static_cast<size_t>(std::max(attention_floats(head_width, limits.context),
                                     attention_back_floats(head_width, limits.context)));
    size_t products = 0;
    for (const int64_t out : {width, 3 * width, 4 * width}) {
      products = std::max({products, products_.scratch_bytes(rows, out, width),
                           products_.scratch_bytes(rows, width, out)});
    }
    const size_t in_head = std::max(products_.scratch_bytes(head.chunk, width, limits.vocab),
                                    products_.scratch_bytes(head.chunk, limits.vocab, width));
    return std::max({products, attention, head.bytes + in_head});
  }
  void use_scratch(View scratch) override {
    scratch_ = {static_cast<std::byte*>(scratch.p), scratch.bytes()};
  }

  void gemm(Stream&, const Gemm& g) override {
    assert(!(g.accumulate && (g.bias || g.add || g.back || g.act != Activation::none)));
    Product<T> o = product(g.a, g.b, g.transposed_a, g.transposed_b, g.c);
    o.accumulate = g.accumulate;
    o.column_sums = g.dbias ? g.dbias.as<float>() : nullptr;
    o.bias = memory_of(g.bias);
    o.add = memory_of(g.add);
    o.back = memory_of(g.back);
    o.pre = memory_of(g.pre);
    o.gelu = g.act == Activation::gelu;
    products_.run(o, scratch_);
  }

  void embed(Stream&, const Embed& e) override {
    const int64_t context = e.tokens.cols(), width = e.out.cols();
    team_.split(e.tokens.size(), 1, e.out.size(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        loops_.add(e.token_table.as<T>() + e.tokens.as<int32_t>()[row] * width,
                   e.position_table.as<T>() + row % context * width, e.out.as<T>() + row * width,
                   width);
      }
    });
  }

  // Threads share the columns, not the rows: two rows may have the same token.
  void embed_back(Stream&, const EmbedBack& e) override {
    const int64_t context = e.tokens.cols(), width = e.dout.cols();
    team_.split(width, kernel_unit, 2 * e.dout.size(), [&](int64_t begin, int64_t end) {
      for (int64_t row = 0; row < e.tokens.size(); ++row) {
        const T* dout = e.dout.as<T>() + row * width + begin;
        float* dtoken = e.dtoken_table.as<float>() + e.tokens.as<int32_t>()[row] * width + begin;
        float* dposition = e.dposition_table.as<float>() + row % context * width + begin;
        loops_.accumulate(dout, dtoken, end - begin);
        loops_.accumulate(dout, dposition, end - begin);
      }
    });
  }

  void norm(Stream&, const Norm& o) override {
    const int64_t width = o.x.cols();
    team_.split(o.x.rows(), 1, 2 * o.x.size(), [&](int64_t begin, int64_t end) {
      loops_.norm(o.x.as<T>() + begin * width, o.gain.as<T>(), o.bias.as<T>(),
                  o.y.as<T>() + begin * width, o.mean.as<float>() + begin,
                  o.rstd.as<float>() + begin, end - begin, width);
    });
  }

  // Columns are summed over a block of rows at a time, whoever does them; one thread alone goes on
  // with the same rows while they are near.
  void norm_back(Stream&, const NormBack& o) override {
    constexpr int64_t block = 64;
    const int64_t rows = o.x.rows(), width = o.x.cols(), work = 2 * o.x.size();
    const T *x = o.x.as<T>(), *dy = o.dy.as<T>();
    const float *mean = o.mean.as<float>(), *rstd = o.rstd.as<float>();
    const auto columns = [&](int64_t row, int64_t begin, int64_t end) {
      loops_.norm_back_columns(x + row * width, dy + row * width, mean + row, rstd + row,
                               std::min(block, rows - row), width, begin, end, o.dgain.as<float>(),
                               o.dbias.as<float>());
    };
    const auto input = [&](int64_t begin, int64_t end) {
      loops_.norm_back(x + begin * width, dy + begin * width, o.gain.as<T>(), mean + begin,
                       rstd + begin, o.dx.as<T>() + begin * width, end - begin, width);
    };
    if (team_.size() == 1) {
      for (int64_t row = 0; row < rows; row += block) {
        columns(row, 0, width);
        input(row, std::min(row + block, rows));
      }
      return;
    }
    team_.split(width, kernel_unit, work, [&](int64_t begin, int64_t end) {
      for (int64_t row = 0; row < rows; row += block) columns(row, begin, end);
    });
    team_.split(rows, 1, work, input);
  }

  // A part copies all keys of its head: there are only as many as keep the threads busy.
  void attention(Stream&, const Attention& o) override {
    const int64_t pairs = o.sequences * o.heads, queries = o.context - o.first;
    const int64_t blocks = (queries + attention_queries - 1) / attention_queries;
    const int64_t parts = std::clamp(4 * team_.size() / pairs, int64_t{1}, blocks);
    const int64_t floats = attention_floats(o.out.cols() / o.heads, o.context);
    float* scratch = scratch_floats(team_.size() * floats);
    team_.each(pairs * parts, [&](int64_t i, int thread) {
      loops_.attention(head(o, i / parts), i % parts, parts, scratch + thread * floats);
    });
  }

  void attention_back(Stream&, const AttentionBack& o) override {
    const int64_t floats = attention_back_floats(o.out.cols() / o.heads, o.context);
    float* scratch = scratch_floats(team_.size() * floats);
    team_.each(o.sequences * o.heads, [&](int64_t pair, int thread) {
      AttentionHeadBack<T> back;
      back.head = head({o.sequences, o.context, o.heads, o.qkv, o.out, o.lse}, pair);
      back.dout = o.dout.as<T>() + (back.head.out - o.out.as<T>());
      back.dq = o.dqkv.as<T>() + (back.head.q - o.qkv.as<T>());
      back.dk = back.dq + (back.head.k - back.head.q);
      back.dv = back.dq + (back.head.v - back.head.q);
      loops_.attention_back(back, scratch + thread * floats);
    });
  }

  void head_loss(Stream&, const Head& o) override {
    const int64_t rows = o.x.rows(), width = o.x.cols(), vocab = o.weight.rows();
    const HeadScratch head(head_chunk(rows, vocab), vocab);
    assert(head.bytes <= scratch_.size());
    const auto rest = scratch_.subspan(head.bytes);
    double* losses = reinterpret_cast<double*>(scratch_.data());
    float* logits = reinterpret_cast<float*>(scratch_.data() + head.logits);
    T* gradient = reinterpret_cast<T*>(scratch_.data() + head.gradient);
    for (int64_t first = 0; first < rows; first += head.chunk) {
      const int64_t m = std::min(head.chunk, rows - first);
      const View x(o.x.as<T>() + first * width, dtype(), {m, width});
      const View dlogits(gradient, dtype(), {m, vocab});
      const int32_t* targets = o.targets.as<int32_t>() + first;
      products_.run(product(x, o.weight, false, true, View(logits, DType::f32, {m, vocab})), rest);
      team_.split(m, 1, 4 * m * vocab, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          losses[i] = row_loss(logits + i * vocab, vocab, targets[i], gradient + i * vocab);
        }
      });
      for (int64_t i = 0; i < m; ++i) {
        o.loss.as<double>()[0] += losses[i];
        o.count.as<double>()[0] += targets[i] >= 0;
      }
      if (!o.dx) continue;
      const View dx(o.dx.as<T>() + first * width, dtype(), {m, width});
      products_.run(product(dlogits, o.weight, false, false, dx), rest);
      Product<T> dweight = product(dlogits, x, true, false, o.dweight);
      dweight.accumulate = o.accumulate || first > 0;
      products_.run(dweight, rest);
    }
  }

  void copy(Stream&, View from, View to) override {
    team_.split(to.size(), kernel_unit, to.size(), [&](int64_t begin, int64_t end) {
      if (from.t == DType::f32 && to.t == DType::bf16) {
        kernels_.bf16.narrow(from.as<float>() + begin, to.as<Bf16>() + begin, end - begin);
      } else {
        convert(from, to, begin, end);
      }
    });
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
    team_.split(slots.weight.size(), kernel_unit, 4 * slots.weight.size(),
                [&](int64_t begin, int64_t end) {
                  // The copy is made of weights that are still in the first cache.
                  const int64_t piece = slots.copy ? 2048 : end - begin;
                  for (int64_t i = begin; i < end; i += piece) {
                    const int64_t n = std::min(piece, end - i);
                    kernels_.adam(adam, slots.grad.as<float>() + i, slots.weight.as<float>() + i,
                                  slots.m.as<float>() + i, slots.v.as<float>() + i, n);
                    if (slots.copy) copy_weights(rule, slots, scalar[update_step], i, n);
                  }
                });
  }

 private:
  // Where head_loss keeps what, in bytes from the start of scratch; products get the rest.
  struct HeadScratch {
    int64_t chunk;
    size_t logits, gradient, bytes;
    HeadScratch(int64_t rows, int64_t vocab) : chunk(rows) {
      const size_t elements = static_cast<size_t>(rows * vocab);
      logits = whole_lines(static_cast<size_t>(rows) * sizeof(double));
      const size_t end = logits + whole_lines(elements * sizeof(float));
      gradient = is_wide ? logits : end;
      bytes = is_wide ? end : end + whole_lines(elements * sizeof(T));
    }
  };

  Product<T> product(View a, View b, bool transposed_a, bool transposed_b, View c) const {
    Product<T> o{};
    o.m = c.rows();
    o.n = c.cols();
    o.k = transposed_a ? a.rows() : a.cols();
    assert(a.size() == o.m * o.k && b.size() == o.k * o.n);
    o.a = a.as<T>();
    o.b = b.as<T>();
    o.transposed_a = transposed_a;
    o.transposed_b = transposed_b;
    o.a_stride = transposed_a ? o.m : o.k;
    o.b_stride = transposed_b ? o.k : o.n;
    o.stride = o.n;
    if (c.t == DType::f32) {
      o.wide_c = c.as<float>();
    } else {
      o.c = c.as<T>();
    }
    return o;
  }

  void copy_weights(const Rule& rule, const Slots& slots, double step, int64_t begin,
                    int64_t n) const {
    const float* from = slots.weight.as<float>() + begin;
    T* to = slots.copy.as<T>() + begin;
    if constexpr (is_wide) {
      std::copy(from, from + n, to);
    } else if (!rule.stochastic) {
      loops_.narrow(from, to, n);
    } else {
      round_by_chance(from, to, n, rule.seed, static_cast<uint32_t>(step),
                      slots.element + static_cast<uint64_t>(begin));
    }
  }

  static T* memory_of(View v) { return v ? v.as<T>() : nullptr; }

  float* scratch_floats(int64_t floats) const {
    assert(static_cast<size_t>(floats) * sizeof(float) <= scratch_.size());
    return reinterpret_cast<float*>(scratch_.data());
  }

  // The pair-th of the heads of all sequences.
  static AttentionHead<T> head(const Attention& o, int64_t pair) {
    const int64_t sequence = pair / o.heads, all = o.out.cols(), width = all / o.heads;
    const int64_t column = pair % o.heads * width, queries = o.context - o.first;
    const T* q = o.qkv.as<T>() + sequence * o.context * o.qkv.cols() + column;
    return {.context = o.context,
            .width = width,
            .first = o.first,
            .stride = o.qkv.cols(),
            .out_stride = all,
            .q = q,
            .k = q + all,
            .v = q + 2 * all,
            .out = o.out.as<T>() + sequence * queries * all + column,
            .lse = o.lse ? o.lse.as<float>() + pair * queries : nullptr};
  }

  double row_loss(float* logits, int64_t vocab, int32_t target, T* gradient) const {
    assert(target < vocab);
    if (target >= 0) return loops_.cross_entropy(logits, vocab, target, gradient);
    std::fill(gradient, gradient + vocab, T{});
    return 0;
  }

  Team team_;
  const Kernels& kernels_;
  const Loops<T>& loops_;
  Products<T> products_;
  std::span<std::byte> scratch_;
};

}  // namespace

std::unique_ptr<Ops> make_cpu_ops(int threads, const Kernels& kernels, DType dtype, ProductsBy by) {
  assert(dtype == DType::f32 || dtype == DType::bf16);
  const int team = threads > 0 ? threads : omp_get_max_threads();
  if (dtype == DType::bf16) return std::make_unique<CpuOps<Bf16>>(team, kernels, by);
  return std::make_unique<CpuOps<float>>(team, kernels, by);
}

std::unique_ptr<Ops> make_cpu_ops(int threads, SameBits bits, DType dtype) {
  const ProductsBy by =
      dtype == DType::bf16 ? best_products<Bf16>(bits) : best_products<float>(bits);
  return make_cpu_ops(threads, kernels().front(), dtype, by);
}

}  // namespace trainlaunch
