// Which kernel or product does which operation, and what lies where in scratch memory.

#include "ops/cuda/cuda_ops.h"

#include <algorithm>
#include <array>
#include <cassert>

#include "ops/cuda/kernels.h"

namespace trainlaunch {

namespace {

constexpr size_t alignment = 256;
size_t aligned(size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

// Logits that exist at once, in rows: many, because the gradient of the whole table is read and
// written once for each lot of them.
int64_t head_chunk(int64_t rows, int64_t vocab) {
  constexpr int64_t most_logits = int64_t{4096} * 65536;
  return std::min(rows, std::max<int64_t>(256, most_logits / vocab));
}
// Rows of logits begin at what tensor cores like to read.
int64_t head_stride(int64_t vocab) { return (vocab + 63) / 64 * 64; }

class CudaOps final : public Ops {
 public:
  CudaOps(DType dtype, std::unique_ptr<gpu::Products> products, Report report)
      : dtype_(dtype), products_(std::move(products)), report_(std::move(report)) {}

  const char* name() const override { return "cuda"; }
  DType dtype() const override { return dtype_; }

  // The workspace of products, and behind it what one operation needs.
  size_t scratch_bytes(const OpsLimits& l) const override {
    const int64_t rows = l.sequences * l.context;
    const size_t columns = column_bytes(rows, 4 * l.width);
    const size_t delta = sizeof(float) * static_cast<size_t>(rows * l.heads);
    const size_t sorting = sizeof(int32_t) * 2 * static_cast<size_t>(rows);
    return alignment + workspace() + std::max({columns, delta, sorting, head_bytes(rows, l.vocab)});
  }
  void use_scratch(View scratch) override {
    const auto begin = reinterpret_cast<uintptr_t>(scratch.p);
    const auto skipped = static_cast<int64_t>(aligned(begin) - begin);
    scratch_ = scratch.slice(skipped, std::max<int64_t>(scratch.size() - skipped, 0));
  }

  void gemm(Stream& s, const Gemm& g) override {
    const Checked checked(*this, s);
    assert(!g.accumulate || g.c.t == wide());
    gpu::Product p = product(g.a, g.b, g.c, g.transposed_a, g.transposed_b);
    p.bias = g.bias.p;
    p.add = g.accumulate ? g.c.p : g.add.p;
    p.gelu = g.act == Activation::gelu;
    p.pre = g.pre.p;
    p.back = g.back.p;
    run(s, p);
    if (g.dbias) {
      gpu::bias_back(s.native(), g.b, g.dbias, rest<float>(column_bytes(g.b.rows(), g.b.cols())));
    }
  }

  void embed(Stream& s, const Embed& e) override {
    const Checked checked(*this, s);
    gpu::embed(s.native(), e.tokens.as<int32_t>(), e.tokens.size(), e.tokens.cols(), e.token_table,
               e.position_table, e.out);
  }
  void embed_back(Stream& s, const EmbedBack& e) override {
    const Checked checked(*this, s);
    const int64_t rows = e.tokens.size();
    gpu::embed_back(s.native(), e.tokens.as<int32_t>(), rows, e.tokens.cols(), e.dout,
                    e.dtoken_table, e.dposition_table,
                    rest<int32_t>(sizeof(int32_t) * 2 * static_cast<size_t>(rows)));
  }

  void norm(Stream& s, const Norm& o) override {
    const Checked checked(*this, s);
    gpu::norm(s.native(), o.x, o.gain, o.bias, o.y, o.mean, o.rstd);
  }
  void norm_back(Stream& s, const NormBack& o) override {
    const Checked checked(*this, s);
    gpu::norm_back_columns(s.native(), o.x, o.dy, o.mean, o.rstd, o.dgain, o.dbias,
                           rest<float>(column_bytes(o.x.rows(), o.x.cols())));
    gpu::norm_back(s.native(), o.x, o.dy, o.gain, o.mean, o.rstd, o.dx);
  }

  void attention(Stream& s, const Attention& o) override {
    const Checked checked(*this, s);
    const gpu::AttentionForward a{
        {o.sequences, o.context, o.heads, o.out.cols() / o.heads, o.first},
        o.qkv,
        o.out,
        static_cast<float*>(o.lse.p)};
    if (o.context == o.first || o.sequences == 0) return;
    if (on_tensor_cores(a.shape)) return gpu::attention_tensor(s.native(), a);
    gpu::attention(s.native(), a);
  }
  void attention_back(Stream& s, const AttentionBack& o) override {
    const Checked checked(*this, s);
    const gpu::AttentionShape shape{o.sequences, o.context, o.heads, o.out.cols() / o.heads, 0};
    if (o.context == 0 || o.sequences == 0) return;
    float* delta = rest<float>(sizeof(float) * static_cast<size_t>(o.lse.size()));
    gpu::attention_delta(s.native(), shape, o.out, o.dout, delta);
    const gpu::AttentionBackward a{shape, o.qkv, o.dout, o.dqkv, o.lse.as<float>(), delta};
    if (on_tensor_cores(shape)) return gpu::attention_back_tensor(s.native(), a);
    gpu::attention_back(s.native(), a);
  }

  void head_loss(Stream& s, const Head& o) override {
    const Checked checked(*this, s);
    const int64_t rows = o.x.rows(), width = o.x.cols(), vocab = o.weight.rows();
    const int64_t chunk = head_chunk(rows, vocab), stride = head_stride(vocab);
    auto* losses = rest<double>(head_bytes(rows, vocab));
    void* logits = reinterpret_cast<std::byte*>(losses) + loss_bytes(chunk);
    for (int64_t first = 0; first < rows; first += chunk) {
      const int64_t m = std::min(chunk, rows - first);
      const View x = o.x.slice(first * width, m * width).reshape({m, width});
      const View all(logits, dtype_, {m, stride});
      const int32_t* targets = o.targets.as<int32_t>() + first;

      View visible = all;
      visible.shape[1] = vocab;
      gpu::Product forward = product(x, o.weight, visible, false, true);
      forward.ldc = stride;
      run(s, forward);
      gpu::cross_entropy(s.native(), {all, vocab, targets, losses, static_cast<bool>(o.dx)});
      gpu::add_losses(s.native(), losses, targets, m, o.loss.as<double>(), o.count.as<double>());
      if (!o.dx) continue;

      const View dx = o.dx.slice(first * width, m * width).reshape({m, width});
      gpu::Product to_x = product(visible, o.weight, dx, false, false);
      to_x.lda = stride;
      run(s, to_x);
      gpu::Product to_weight = product(visible, x, o.dweight, true, false);
      to_weight.lda = stride;
      if (o.accumulate || first > 0) to_weight.add = o.dweight.p;
      run(s, to_weight);
    }
  }

  void copy(Stream& s, View from, View to) override {
    const Checked checked(*this, s);
    gpu::convert(s.native(), from, to);
  }
  void fill(Stream& s, View v, double value) override {
    const Checked checked(*this, s);
    gpu::fill(s.native(), v, value);
  }
  void sum(Stream& s, View dst, std::span<const View> parts) override {
    const Checked checked(*this, s);
    gpu::sum(s.native(), dst, parts.data(), static_cast<int>(parts.size()));
  }
  void sumsq(Stream& s, View x, int64_t tile, View out) override {
    const Checked checked(*this, s);
    gpu::sumsq(s.native(), x, tile, out);
  }
  void update(Stream& s, const Rule& r, const Slots& slots, View scalars) override {
    const Checked checked(*this, s);
    const double* at = scalars.as<double>();
    gpu::adam(s.native(), {r.beta1,
                           r.beta2,
                           r.eps,
                           r.weight_decay,
                           r.stochastic,
                           r.seed,
                           slots.element,
                           slots.weight,
                           slots.grad,
                           slots.m,
                           slots.v,
                           slots.copy,
                           {at + learning_rate, at + grad_scale, at + correction1, at + correction2,
                            at + update_step}});
  }

 private:
  // Hands to the Stream what went wrong in an operation's kernels.
  class Checked {
   public:
    Checked(const CudaOps& ops, Stream& s) : ops_(ops), stream_(s) {}
    ~Checked() {
      if (auto ok = ops_.products_->started(); !ok) ops_.report_(stream_, ok.error());
    }
    Checked(const Checked&) = delete;

   private:
    const CudaOps& ops_;
    Stream& stream_;
  };

  gpu::Product product(View a, View b, View c, bool transposed_a, bool transposed_b) const {
    gpu::Product p;
    p.m = c.rows();
    p.n = c.cols();
    p.k = transposed_a ? a.rows() : a.cols();
    assert(a.size() == p.m * p.k && b.size() == p.k * p.n);
    p.transposed_a = transposed_a;
    p.transposed_b = transposed_b;
    p.in = dtype_;
    p.out = c.t;
    p.a = a.p;
    p.b = b.p;
    p.c = c.p;
    p.lda = a.cols();
    p.ldb = b.cols();
    p.ldc = c.cols();
    return p;
  }

  // The product, and by a kernel what the library does not do at its end.
  void run(Stream& s, const gpu::Product& p) {
    if (p.m == 0 || p.n == 0) return;
    gpu::Ending done;
    if (p.k == 0) {
      const View c(p.c, p.out, {p.m, p.n});
      if (!p.add) gpu::fill(s.native(), c, 0);
      if (p.add && p.add != p.c)
        gpu::convert(s.native(), View(const_cast<void*>(p.add), p.out, {p.m, p.n}), c);
    } else {
      auto ending = products_->run(s.native(), p, scratch_.p);
      if (!ending) return report_(s, ending.error());
      done = *ending;
    }
    gpu::Finish left;
    left.c = View(p.c, p.out, {p.m, p.n});
    left.gelu = p.gelu && !done.gelu;
    const auto same = [&](const void* x) { return View(const_cast<void*>(x), p.in, {p.m, p.n}); };
    if (p.bias && !done.bias) left.bias = View(const_cast<void*>(p.bias), p.in, {p.n});
    if (p.pre && !done.gelu) left.pre = same(p.pre);
    if (p.back && !done.back) left.back = same(p.back);
    if (left.gelu || left.bias || left.back) gpu::finish(s.native(), left);
  }

  bool on_tensor_cores(const gpu::AttentionShape& s) const {
    return dtype_ == DType::bf16 && s.width <= gpu::most_tensor_width;
  }

  static size_t column_bytes(int64_t rows, int64_t columns) {
    return sizeof(float) * 2 * static_cast<size_t>(gpu::column_chunks(rows) * columns);
  }
  static size_t loss_bytes(int64_t chunk) {
    return aligned(sizeof(double) * static_cast<size_t>(chunk));
  }
  size_t head_bytes(int64_t rows, int64_t vocab) const {
    const int64_t chunk = head_chunk(rows, vocab);
    return loss_bytes(chunk) + static_cast<size_t>(chunk * head_stride(vocab)) * bytes_of(dtype_);
  }

  size_t workspace() const { return aligned(products_->workspace_bytes()); }
  template <class T>
  T* rest([[maybe_unused]] size_t bytes) const {
    assert(workspace() + bytes <= scratch_.bytes());
    return reinterpret_cast<T*>(static_cast<std::byte*>(scratch_.p) + workspace());
  }

  const DType dtype_;
  const std::unique_ptr<gpu::Products> products_;
  const Report report_;
  View scratch_;
};

}  // namespace

std::unique_ptr<Ops> make_cuda_ops(DType dtype, std::unique_ptr<gpu::Products> products,
                                   Report report) {
  return std::make_unique<CudaOps>(dtype, std::move(products), std::move(report));
}

}  // namespace trainlaunch
