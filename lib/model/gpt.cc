// GPT-2, forward and backward, from top to bottom.
//
//   x  = token_table[token] + position_table[position]
//   x += proj(attention(qkv(norm1(x))))        \  once per layer; each linear map
//   x += contract(gelu(expand(norm2(x))))      /  has a weight and a bias
//   logits = norm(x) token_table^T             the embedding is tied
//
// The backward pass runs the same lines upwards. x is called the residual stream: every layer adds
// to it, so its gradient passes through unchanged and every layer adds to that too.
//
// Shapes: B sequences of T tokens make rows = B*T; C is the width, H the heads, V the vocabulary.
// A linear map is y = x W + b with W stored as [in, out], which is how GPT-2's own checkpoints have
// it (Hugging Face's Conv1D): no product of the forward pass needs a transpose.
#include <array>
#include <cmath>

#include "model/model.h"

namespace trainlaunch {

namespace {

// Parameters, in the order of their use. The bias of a linear map follows its weight, the bias of a
// norm its gain.
enum EmbeddingParam { token_table, position_table, embedding_params };
enum LayerParam {
  norm1,
  norm1_bias,
  qkv,
  qkv_bias,
  proj,
  proj_bias,
  norm2,
  norm2_bias,
  expand,
  expand_bias,
  contract,
  contract_bias,
  layer_params
};

// What a layer computes and its backward pass reads again.
struct Layer {
  View x;                      // [rows, C]  the residual stream, before the layer
  View normed1, mean1, rstd1;  // [rows, C], [rows], [rows]
  View qkv;                    // [rows, 3C]
  View lse;                    // [B, H, T]
  View attended;               // [rows, C]
  View mid;                    // [rows, C]  the residual stream, between attention and the MLP
  View normed2, mean2, rstd2;
  View expanded;   // [rows, 4C] before the activation
  View activated;  // [rows, 4C]
};

// The last norm, in front of the head.
struct Top {
  View x;  // [rows, C]  the residual stream, after all layers
  View normed, mean, rstd;
};

// Gradients; none outlives its layer but dx, that of the residual stream.
struct Work {
  View dnormed;    // [rows, C]  of a norm's output
  View dx;         // [rows, C]
  View dattended;  // [rows, C]
  View dqkv;       // [rows, 3C]
  View dexpanded;  // [rows, 4C]
};

// One call of the model on one batch, or on the tokens of one sequence from `first` on.
struct Pass {
  Ops& ops;
  Stream& stream;
  Shard& shard;
  int64_t sequences, context;
  int64_t first = 0;

  int64_t rows() const { return sequences * context; }
  int64_t end() const { return first + context; }
  // Activations are reserved for the largest batch; this one may be smaller.
  View fit(View whole) const {
    return whole.n == 1 ? View(whole.p, whole.t, {rows()})
                        : View(whole.p, whole.t, {rows(), whole.cols()});
  }
  // Rows of the whole sequence, and those of them that are computed now.
  View cached(View whole) const {
    return View(whole.p, whole.t, {sequences * end(), whole.cols()});
  }
  View fresh(View whole) const {
    const int64_t columns = whole.cols();
    return whole.slice(first * columns, rows() * columns).reshape({rows(), columns});
  }

  Gemm linear_map(View x, int weight, View y) const {
    Gemm g;
    g.a = x;
    g.b = shard.weight(weight);
    g.c = y;
    g.bias = shard.weight(weight + 1);
    return g;
  }
  void linear(View x, int weight, View y) const { ops.gemm(stream, linear_map(x, weight, y)); }
  // y = gelu(pre), pre = x W + b
  void linear_gelu(View x, int weight, View y, View pre) const {
    Gemm g = linear_map(x, weight, y);
    g.act = Activation::gelu;
    g.pre = pre;
    ops.gemm(stream, g);
  }
  // y = x W + b + add
  void linear_add(View x, int weight, View add, View y) const {
    Gemm g = linear_map(x, weight, y);
    g.add = add;
    ops.gemm(stream, g);
  }
  // dW += x^T dy (or, the first time, =), db += sum of dy's rows, dx = dy W^T; where x is
  // gelu(pre), dx is pre's gradient.
  void linear_back(View x, int weight, View dy, View dx, View pre = {}) const {
    Gemm dw;
    dw.a = x;
    dw.transposed_a = true;
    dw.b = dy;
    const GradientSum sum = shard.grad_sum(weight);
    dw.c = sum.to;
    dw.accumulate = sum.begun;
    dw.dbias = shard.grad(weight + 1);
    ops.gemm(stream, dw);
    shard.ready(stream, weight);
    shard.ready(stream, weight + 1);
    Gemm g;
    g.a = dy;
    g.b = shard.weight(weight);
    g.transposed_b = true;
    g.c = dx;
    g.back = pre;
    ops.gemm(stream, g);
  }

  void norm(View x, int gain, View y, View mean, View rstd) const {
    ops.norm(stream, {x, shard.weight(gain), shard.weight(gain + 1), y, mean, rstd});
  }
  // dx += what comes through the norm
  void norm_back(View x, int gain, View mean, View rstd, View dy, View dx) const {
    ops.norm_back(stream, {x, dy, shard.weight(gain), mean, rstd, dx, shard.grad(gain),
                           shard.grad(gain + 1)});
    shard.ready(stream, gain);
    shard.ready(stream, gain + 1);
  }
};

class Gpt final : public Model {
 public:
  explicit Gpt(const GptConfig& config) : config_(config) {
    list_parameters();
    for (int64_t l = 0; l < config_.layers; ++l) {
      const std::string n = std::to_string(l);
      spans_.push_back({"forward " + n, "backward " + n});
    }
  }

  std::span<const ParamSpec> params() const override { return specs_; }

  OpsLimits limits(const BatchShape& shape) const override {
    return {shape.sequences, shape.context, config_.width, config_.heads, config_.vocab};
  }

  void reserve(Arena& arena, const Ops& ops, const ReserveFor& what) override {
    const int64_t rows = what.shape.sequences * what.shape.context, C = config_.width;
    const bool training = what.use == Use::training, generation = what.use == Use::generation;
    recompute_ = training && what.recompute == Recompute::block;
    auto matrix = [&](int64_t columns) {
      return arena.take("activations", ops.dtype(), {rows, columns});
    };
    auto column = [&] { return arena.take("activations", ops.wide(), {rows}); };

    // Layers share what need not outlive them: without a backward pass everything, but in text
    // generation not the cache; with recomputation everything but where they begin.
    layers_.assign(training || generation ? config_.layers : 1, Layer{});
    for (Layer& a : layers_) {
      const bool first = &a == &layers_.front();
      if (!first && (recompute_ || generation)) a = layers_.front();
      if (first || !generation) a.x = matrix(C);
      if (first || !recompute_) a.qkv = matrix(3 * C);
      if (!first && (recompute_ || generation)) continue;
      a.normed1 = matrix(C);
      a.mean1 = column();
      a.rstd1 = column();
      a.lse = arena.take("activations", ops.wide(), {rows * config_.heads});
      a.attended = matrix(C);
      a.mid = matrix(C);
      a.normed2 = matrix(C);
      a.mean2 = column();
      a.rstd2 = column();
      a.expanded = matrix(4 * C);
      a.activated = matrix(4 * C);
    }
    top_ = {};
    top_.x = matrix(C);
    top_.normed = matrix(C);
    top_.mean = column();
    top_.rstd = column();
    work_ = {};
    if (!training) return;
    auto gradient = [&](int64_t columns) {
      return arena.take("gradients of activations", ops.dtype(), {rows, columns});
    };
    work_.dnormed = gradient(C);
    work_.dx = gradient(C);
    work_.dattended = gradient(C);
    work_.dqkv = gradient(3 * C);
    work_.dexpanded = gradient(4 * C);
  }

  void evaluate(Ctx& ctx, const Batch& batch, Shard& shard) override {
    const Traced traced(ctx.trace, "compute", "evaluate");
    const Pass p = pass(ctx, batch, shard);
    const Top top = fit(p, top_);
    run_layers(ctx, p, batch.tokens, /*keep=*/false);
    final_norm(p, top);
    head(ctx, p, batch, top.normed, {}, {});
  }

  void forward(Ctx& ctx, const Batch& batch, Shard& shard) override {
    const Pass p = pass(ctx, batch, shard);
    run_layers(ctx, p, batch.tokens, /*keep=*/true);
    final_norm(p, fit(p, top_));
  }

  void backward(Ctx& ctx, const Batch& batch, Shard& shard) override {
    const Pass p = pass(ctx, batch, shard);
    const Top top = fit(p, top_);
    const Work w = fit(p, work_);
    {
      const Traced traced(ctx.trace, "compute", "loss");
      head(ctx, p, batch, top.normed, w.dnormed, shard.grad_sum(token_table));
      shard.ready(p.stream, token_table);
    }

    p.ops.fill(p.stream, w.dx, 0.0);
    shard.acquire(p.stream, final_block());
    p.norm_back(top.x, final_norm_param(), top.mean, top.rstd, w.dnormed, w.dx);
    shard.release(p.stream, final_block());

    for (int l = static_cast<int>(config_.layers) - 1; l >= 0; --l) {
      const Traced traced(ctx.trace, "compute", spans_[l][1]);
      layer_back(p, l, w);
    }

    const Traced traced(ctx.trace, "compute", "embed");
    p.ops.embed_back(p.stream,
                     {batch.tokens, w.dx, shard.grad(token_table), shard.grad(position_table)});
    shard.ready(p.stream, position_table);
    shard.ready(p.stream, token_table);
  }

  void extend(Ctx& ctx, View tokens, int64_t first, View out, Shard& shard) override {
    const Traced traced(ctx.trace, "compute", "extend");
    const Pass p{ctx.ops, ctx.stream, shard, 1, tokens.cols(), first};
    run_layers(ctx, p, tokens, /*keep=*/true);

    // Only what follows the last token is wanted.
    const Pass last{ctx.ops, ctx.stream, shard, 1, 1};
    Top top = fit(last, top_);
    top.x = top_.x.slice((p.rows() - 1) * config_.width, config_.width).reshape({1, config_.width});
    final_norm(last, top);
    shard.acquire(p.stream, embedding_block);
    Gemm g;
    g.a = top.normed;
    g.b = shard.weight(token_table);
    g.transposed_b = true;
    g.c = out.reshape({1, config_.vocab});
    p.ops.gemm(p.stream, g);
    shard.release(p.stream, embedding_block);
  }

  double flops_per_token() const override {
    int64_t n = 0;
    for (const ParamSpec& s : specs_) n += s.size();
    return 6.0 * n + 6.0 * config_.layers * config_.width * config_.context;
  }

 private:
  // Blocks count from the bottom: the embedding, the layers, the last norm.
  static constexpr int embedding_block = 0;
  static int layer_block(int layer) { return 1 + layer; }
  int final_block() const { return layer_block(static_cast<int>(config_.layers)); }

  static int param(int layer, LayerParam p) { return embedding_params + layer * layer_params + p; }
  int final_norm_param() const { return param(static_cast<int>(config_.layers), norm1); }

  void list_parameters() {
    const int64_t C = config_.width;
    const Init normal{Init::normal, 0.02f}, zero{Init::zero, 0}, one{Init::one, 0};
    // Each layer adds twice to the residual stream; its variance should not grow with the depth.
    const Init residual{Init::normal, static_cast<float>(0.02 / std::sqrt(2.0 * config_.layers))};
    auto add = [&](std::string name, std::string hf, std::vector<int64_t> shape, Init init,
                   int block) {
      const Group group = shape.size() > 1 ? Group::decay : Group::no_decay;
      specs_.push_back({std::move(name), "transformer." + std::move(hf), std::move(shape), init,
                        group, block, 1});
    };

    add("embedding.tokens", "wte.weight", {config_.vocab, C}, normal, embedding_block);
    specs_.back().contributions = 2;  // the head and the embedding
    add("embedding.positions", "wpe.weight", {config_.context, C}, normal, embedding_block);
    for (int l = 0; l < config_.layers; ++l) {
      const std::string n = "layer." + std::to_string(l) + ".", h = "h." + std::to_string(l) + ".";
      const int b = layer_block(l);
      add(n + "norm1.gain", h + "ln_1.weight", {C}, one, b);
      add(n + "norm1.bias", h + "ln_1.bias", {C}, zero, b);
      add(n + "attention.qkv.weight", h + "attn.c_attn.weight", {C, 3 * C}, normal, b);
      add(n + "attention.qkv.bias", h + "attn.c_attn.bias", {3 * C}, zero, b);
      add(n + "attention.proj.weight", h + "attn.c_proj.weight", {C, C}, residual, b);
      add(n + "attention.proj.bias", h + "attn.c_proj.bias", {C}, zero, b);
      add(n + "norm2.gain", h + "ln_2.weight", {C}, one, b);
      add(n + "norm2.bias", h + "ln_2.bias", {C}, zero, b);
      add(n + "mlp.expand.weight", h + "mlp.c_fc.weight", {C, 4 * C}, normal, b);
      add(n + "mlp.expand.bias", h + "mlp.c_fc.bias", {4 * C}, zero, b);
      add(n + "mlp.contract.weight", h + "mlp.c_proj.weight", {4 * C, C}, residual, b);
      add(n + "mlp.contract.bias", h + "mlp.c_proj.bias", {C}, zero, b);
    }
    add("norm.gain", "ln_f.weight", {C}, one, final_block());
    add("norm.bias", "ln_f.bias", {C}, zero, final_block());
  }

  Pass pass(Ctx& ctx, const Batch& batch, Shard& shard) const {
    return {ctx.ops, ctx.stream, shard, batch.tokens.rows(), batch.tokens.cols()};
  }

  static Top fit(const Pass& p, const Top& t) {
    return {p.fit(t.x), p.fit(t.normed), p.fit(t.mean), p.fit(t.rstd)};
  }
  static Work fit(const Pass& p, const Work& w) {
    return {p.fit(w.dnormed), p.fit(w.dx), p.fit(w.dattended), p.fit(w.dqkv), p.fit(w.dexpanded)};
  }
  Layer fit(const Pass& p, const Layer& a) const {
    return {p.fit(a.x),        p.fit(a.normed1),
            p.fit(a.mean1),    p.fit(a.rstd1),
            p.cached(a.qkv),   View(a.lse.p, a.lse.t, {p.sequences, config_.heads, p.context}),
            p.fit(a.attended), p.fit(a.mid),
            p.fit(a.normed2),  p.fit(a.mean2),
            p.fit(a.rstd2),    p.fit(a.expanded),
            p.fit(a.activated)};
  }

  // Embedding and all layers, into top_.x. `keep`: each layer has memory of its own.
  void run_layers(Ctx& ctx, const Pass& p, View tokens, bool keep) const {
    const int layers = static_cast<int>(config_.layers);
    auto memory = [&](int l) { return fit(p, layers_[keep ? l : 0]); };

    p.shard.acquire(p.stream, embedding_block);
    const View positions = p.shard.weight(position_table);
    p.ops.embed(p.stream, {tokens, p.shard.weight(token_table),
                           positions.slice(p.first * config_.width, p.context * config_.width)
                               .reshape({p.context, config_.width}),
                           memory(0).x});
    p.shard.release(p.stream, embedding_block);
    for (int l = 0; l < layers; ++l) {
      const Traced traced(ctx.trace, "compute", spans_[l][0]);
      const Layer a = memory(l);
      p.shard.acquire(p.stream, layer_block(l));
      layer(p, l, a);
      p.linear_add(a.activated, param(l, contract), a.mid,
                   l + 1 < layers ? memory(l + 1).x : p.fit(top_.x));
      p.shard.release(p.stream, layer_block(l));
    }
  }

  // All of a layer that its backward pass reads: everything but its output.
  void layer(const Pass& p, int l, const Layer& a) const {
    p.norm(a.x, param(l, norm1), a.normed1, a.mean1, a.rstd1);
    p.linear(a.normed1, param(l, qkv), p.fresh(a.qkv));
    p.ops.attention(p.stream,
                    {p.sequences, p.end(), config_.heads, a.qkv, a.attended, a.lse, p.first});
    p.linear_add(a.attended, param(l, proj), a.x, a.mid);

    p.norm(a.mid, param(l, norm2), a.normed2, a.mean2, a.rstd2);
    p.linear_gelu(a.normed2, param(l, expand), a.activated, a.expanded);
  }

  // w.dx: the gradient of the layer's output becomes that of its input.
  void layer_back(const Pass& p, int l, const Work& w) const {
    const Layer a = fit(p, layers_[l]);
    p.shard.acquire(p.stream, layer_block(l));
    // What the last layer computed is still there.
    if (recompute_ && l + 1 < config_.layers) layer(p, l, a);

    p.linear_back(a.activated, param(l, contract), w.dx, w.dexpanded, a.expanded);
    p.linear_back(a.normed2, param(l, expand), w.dexpanded, w.dnormed);
    p.norm_back(a.mid, param(l, norm2), a.mean2, a.rstd2, w.dnormed, w.dx);

    p.linear_back(a.attended, param(l, proj), w.dx, w.dattended);
    p.ops.attention_back(p.stream, {p.sequences, p.context, config_.heads, a.qkv, a.attended, a.lse,
                                    w.dattended, w.dqkv});
    p.linear_back(a.normed1, param(l, qkv), w.dqkv, w.dnormed);
    p.norm_back(a.x, param(l, norm1), a.mean1, a.rstd1, w.dnormed, w.dx);

    p.shard.release(p.stream, layer_block(l));
  }

  void final_norm(const Pass& p, const Top& top) const {
    p.shard.acquire(p.stream, final_block());
    p.norm(top.x, final_norm_param(), top.normed, top.mean, top.rstd);
    p.shard.release(p.stream, final_block());
  }

  // Loss and count into ctx; with dx also the gradients of x and of the token table.
  void head(Ctx& ctx, const Pass& p, const Batch& batch, View x, View dx,
            GradientSum dtable) const {
    p.shard.acquire(p.stream, embedding_block);
    p.ops.head_loss(p.stream, {x, p.shard.weight(token_table), batch.targets.reshape({p.rows()}),
                               ctx.loss, ctx.count, dx, dtable.to, dtable.begun});
    p.shard.release(p.stream, embedding_block);
  }

  const GptConfig config_;
  std::vector<ParamSpec> specs_;
  std::vector<std::array<std::string, 2>> spans_;  // names in the trace: forward, backward
  std::vector<Layer> layers_;
  bool recompute_ = false;
  Top top_;
  Work work_;
};

// Far beyond any model, and small enough that no product of them overflows.
constexpr int64_t max_layers = 4096, max_width = int64_t{1} << 17, max_context = int64_t{1} << 24,
                  max_vocab = int64_t{1} << 24;

Status check(const GptConfig& c) {
  const struct {
    const char* name;
    int64_t value, most;
  } options[] = {{"model.layers", c.layers, max_layers},
                 {"model.heads", c.heads, max_width},
                 {"model.width", c.width, max_width},
                 {"model.context", c.context, max_context},
                 {"model.vocab", c.vocab, max_vocab}};
  for (const auto& o : options) {
    if (o.value < 1 || o.value > o.most) {
      return fail(std::string(o.name) + " = " + std::to_string(o.value) + ": must be from 1 to " +
                      std::to_string(o.most),
                  exit_code::usage);
    }
  }
  if (c.width % c.heads != 0) {
    return fail("model.heads = " + std::to_string(c.heads) + " does not divide model.width = " +
                    std::to_string(c.width) + ": each head is an equal part of the width",
                exit_code::usage);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Model>> make_gpt(const GptConfig& config) {
  if (auto ok = check(config); !ok) return forward(ok);
  return std::make_unique<Gpt>(config);
}

}  // namespace trainlaunch
