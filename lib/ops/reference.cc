// Every operation in f64, as its formula reads. Slow on purpose: this is what the fast ones are
// measured against, so nothing here is blocked, fused, reordered or run in parallel.

#include <cassert>
#include <cmath>
#include <numbers>
#include <vector>

#include "ops/convert.h"
#include "ops/ops.h"

namespace trainlaunch {

namespace {

constexpr double norm_epsilon = 1e-5;
const double gelu_scale = std::sqrt(2.0 / std::numbers::pi);
constexpr double gelu_cubic = 0.044715;

double gelu(double x) {
  return 0.5 * x * (1.0 + std::tanh(gelu_scale * (x + gelu_cubic * x * x * x)));
}

double gelu_derivative(double x) {
  const double t = std::tanh(gelu_scale * (x + gelu_cubic * x * x * x));
  const double inner = gelu_scale * (1.0 + 3.0 * gelu_cubic * x * x);
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner;
}

// Where q, k and v of one head lie in the rows of qkv, and its part of the rows of out.
struct HeadSlice {
  int64_t width, stride;  // of a head; from one token's row to the next
  double *q, *k, *v;

  HeadSlice(View qkv, int64_t context, int64_t heads, int64_t sequence, int64_t head)
      : width(qkv.cols() / 3 / heads), stride(qkv.cols()) {
    q = qkv.as<double>() + sequence * context * stride + head * width;
    k = q + heads * width;
    v = k + heads * width;
  }
};

double dot(const double* a, const double* b, int64_t n) {
  double s = 0;
  for (int64_t i = 0; i < n; ++i) s += a[i] * b[i];
  return s;
}

class ReferenceOps final : public Ops {
 public:
  const char* name() const override { return "reference"; }
  DType dtype() const override { return DType::f64; }
  size_t scratch_bytes(const OpsLimits&) const override { return 0; }
  void use_scratch(View) override {}

  void gemm(Stream&, const Gemm& g) override {
    const int64_t m = g.c.rows(), n = g.c.cols();
    const int64_t k = g.transposed_a ? g.a.rows() : g.a.cols();
    assert(g.a.size() == m * k && g.b.size() == k * n);
    const double *a = g.a.as<double>(), *b = g.b.as<double>();
    double* c = g.c.as<double>();
    for (int64_t p = 0; g.dbias && p < k; ++p) {
      for (int64_t j = 0; j < n; ++j) g.dbias.as<double>()[j] += b[p * n + j];
    }
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double s = 0;
        for (int64_t p = 0; p < k; ++p) {
          s += (g.transposed_a ? a[p * m + i] : a[i * k + p]) *
               (g.transposed_b ? b[j * k + p] : b[p * n + j]);
        }
        if (g.accumulate) {
          c[i * n + j] += s;
          continue;
        }
        if (g.bias) s += g.bias.as<double>()[j];
        if (g.add) s += g.add.as<double>()[i * n + j];
        if (g.back) s *= gelu_derivative(g.back.as<double>()[i * n + j]);
        if (g.pre) g.pre.as<double>()[i * n + j] = s;
        c[i * n + j] = g.act == Activation::gelu ? gelu(s) : s;
      }
    }
  }

  void embed(Stream&, const Embed& e) override {
    const int64_t context = e.tokens.cols(), width = e.out.cols();
    for (int64_t row = 0; row < e.tokens.size(); ++row) {
      const double* token = e.token_table.as<double>() + e.tokens.as<int32_t>()[row] * width;
      const double* position = e.position_table.as<double>() + row % context * width;
      for (int64_t c = 0; c < width; ++c) {
        e.out.as<double>()[row * width + c] = token[c] + position[c];
      }
    }
  }

  void embed_back(Stream&, const EmbedBack& e) override {
    const int64_t context = e.tokens.cols(), width = e.dout.cols();
    for (int64_t row = 0; row < e.tokens.size(); ++row) {
      double* dtoken = e.dtoken_table.as<double>() + e.tokens.as<int32_t>()[row] * width;
      double* dposition = e.dposition_table.as<double>() + row % context * width;
      for (int64_t c = 0; c < width; ++c) {
        dtoken[c] += e.dout.as<double>()[row * width + c];
        dposition[c] += e.dout.as<double>()[row * width + c];
      }
    }
  }

  void norm(Stream&, const Norm& o) override {
    const int64_t rows = o.x.rows(), width = o.x.cols();
    const double *gain = o.gain.as<double>(), *bias = o.bias.as<double>();
    for (int64_t i = 0; i < rows; ++i) {
      const double* x = o.x.as<double>() + i * width;
      double* y = o.y.as<double>() + i * width;
      double mean = 0, variance = 0;
      for (int64_t c = 0; c < width; ++c) mean += x[c] / width;
      for (int64_t c = 0; c < width; ++c) variance += (x[c] - mean) * (x[c] - mean) / width;
      const double rstd = 1.0 / std::sqrt(variance + norm_epsilon);
      for (int64_t c = 0; c < width; ++c) y[c] = (x[c] - mean) * rstd * gain[c] + bias[c];
      o.mean.as<double>()[i] = mean;
      o.rstd.as<double>()[i] = rstd;
    }
  }

  // With h = (x - mean) rstd and g = dy gain: dx = rstd (g - avg(g) - h avg(g h)).
  void norm_back(Stream&, const NormBack& o) override {
    const int64_t rows = o.x.rows(), width = o.x.cols();
    const double* gain = o.gain.as<double>();
    for (int64_t i = 0; i < rows; ++i) {
      const double *x = o.x.as<double>() + i * width, *dy = o.dy.as<double>() + i * width;
      double* dx = o.dx.as<double>() + i * width;
      const double mean = o.mean.as<double>()[i], rstd = o.rstd.as<double>()[i];
      double avg_g = 0, avg_gh = 0;
      for (int64_t c = 0; c < width; ++c) {
        const double h = (x[c] - mean) * rstd;
        avg_g += dy[c] * gain[c] / width;
        avg_gh += dy[c] * gain[c] * h / width;
        o.dgain.as<double>()[c] += dy[c] * h;
        o.dbias.as<double>()[c] += dy[c];
      }
      for (int64_t c = 0; c < width; ++c) {
        const double h = (x[c] - mean) * rstd;
        dx[c] += rstd * (dy[c] * gain[c] - avg_g - h * avg_gh);
      }
    }
  }

  void attention(Stream&, const Attention& o) override {
    const int64_t context = o.context, queries = context - o.first, out_stride = o.out.cols();
    std::vector<double> p(context);
    for (int64_t s = 0; s < o.sequences; ++s) {
      for (int64_t h = 0; h < o.heads; ++h) {
        const HeadSlice in(o.qkv, context, o.heads, s, h);
        double* out = o.out.as<double>() + s * queries * out_stride + h * in.width;
        double* lse = o.lse.as<double>() + (s * o.heads + h) * queries;
        for (int64_t i = o.first; i < context; ++i) {
          double highest = -INFINITY, total = 0;
          for (int64_t j = 0; j <= i; ++j) {
            p[j] = score(in, i, j);
            highest = std::max(highest, p[j]);
          }
          for (int64_t j = 0; j <= i; ++j) total += std::exp(p[j] - highest);
          const double all = highest + std::log(total);
          lse[i - o.first] = all;
          double* row = out + (i - o.first) * out_stride;
          for (int64_t c = 0; c < in.width; ++c) row[c] = 0;
          for (int64_t j = 0; j <= i; ++j) {
            const double weight = std::exp(p[j] - all);
            for (int64_t c = 0; c < in.width; ++c) row[c] += weight * in.v[j * in.stride + c];
          }
        }
      }
    }
  }

  // With p the weights: dv = p^T dout, dp = dout v^T, ds = p (dp - sum_j p dp),
  // dq = scale ds k, dk = scale ds^T q; and sum_j p dp = dout . out.
  void attention_back(Stream& stream, const AttentionBack& o) override {
    const int64_t context = o.context, out_stride = o.out.cols();
    fill(stream, o.dqkv, 0);
    for (int64_t s = 0; s < o.sequences; ++s) {
      for (int64_t h = 0; h < o.heads; ++h) {
        const HeadSlice in(o.qkv, context, o.heads, s, h), grad(o.dqkv, context, o.heads, s, h);
        const double scale = 1.0 / std::sqrt(static_cast<double>(in.width));
        const double* lse = o.lse.as<double>() + (s * o.heads + h) * context;
        for (int64_t i = 0; i < context; ++i) {
          const int64_t at = (s * context + i) * out_stride + h * in.width;
          const double *out = o.out.as<double>() + at, *dout = o.dout.as<double>() + at;
          const double sum_p_dp = dot(dout, out, in.width);
          for (int64_t j = 0; j <= i; ++j) {
            const double p = std::exp(score(in, i, j) - lse[i]);
            const double dp = dot(dout, in.v + j * in.stride, in.width);
            const double ds = scale * p * (dp - sum_p_dp);
            for (int64_t c = 0; c < in.width; ++c) {
              grad.v[j * in.stride + c] += p * dout[c];
              grad.q[i * in.stride + c] += ds * in.k[j * in.stride + c];
              grad.k[j * in.stride + c] += ds * in.q[i * in.stride + c];
            }
          }
        }
      }
    }
  }

  // d(loss)/d(logit_v) = softmax_v - [v == target].
  void head_loss(Stream& stream, const Head& o) override {
    const int64_t rows = o.x.rows(), width = o.x.cols(), vocab = o.weight.rows();
    const double *x = o.x.as<double>(), *weight = o.weight.as<double>();
    std::vector<double> logit(vocab);
    if (o.dx) fill(stream, o.dx, 0);
    if (o.dx && !o.accumulate) fill(stream, o.dweight, 0);
    for (int64_t i = 0; i < rows; ++i) {
      const int32_t target = o.targets.as<int32_t>()[i];
      if (target < 0) continue;
      double highest = -INFINITY, total = 0;
      for (int64_t v = 0; v < vocab; ++v) {
        logit[v] = dot(x + i * width, weight + v * width, width);
        highest = std::max(highest, logit[v]);
      }
      for (int64_t v = 0; v < vocab; ++v) total += std::exp(logit[v] - highest);
      const double lse = highest + std::log(total);
      o.loss.as<double>()[0] += lse - logit[target];
      o.count.as<double>()[0] += 1;
      if (!o.dx) continue;
      for (int64_t v = 0; v < vocab; ++v) {
        const double dlogit = std::exp(logit[v] - lse) - (v == target ? 1.0 : 0.0);
        for (int64_t c = 0; c < width; ++c) {
          o.dx.as<double>()[i * width + c] += dlogit * weight[v * width + c];
          o.dweight.as<double>()[v * width + c] += dlogit * x[i * width + c];
        }
      }
    }
  }

  void copy(Stream&, View from, View to) override { convert(from, to, 0, to.size()); }
  void fill(Stream&, View v, double value) override { trainlaunch::fill(v, value, 0, v.size()); }

  void sum(Stream&, View dst, std::span<const View> parts) override {
    for (int64_t i = 0; i < dst.size(); ++i) {
      double s = parts[0].as<double>()[i];
      for (size_t p = 1; p < parts.size(); ++p) s += parts[p].as<double>()[i];
      dst.as<double>()[i] = s;
    }
  }

  void sumsq(Stream&, View x, int64_t tile, View out) override {
    for (int64_t i = 0; i < out.size(); ++i) {
      const double* first = x.as<double>() + i * tile;
      out.as<double>()[i] = dot(first, first, tile);
    }
  }

  void update(Stream&, const Rule& rule, const Slots& slots, View scalars) override {
    const double* scalar = scalars.as<double>();
    for (int64_t i = 0; i < slots.weight.size(); ++i) {
      double &w = slots.weight.as<double>()[i], &m = slots.m.as<double>()[i],
             &v = slots.v.as<double>()[i];
      const double g = slots.grad.as<double>()[i] * scalar[grad_scale];
      m = rule.beta1 * m + (1.0 - rule.beta1) * g;
      v = rule.beta2 * v + (1.0 - rule.beta2) * g * g;
      const double mean = m / scalar[correction1], variance = v / scalar[correction2];
      w -=
          scalar[learning_rate] * (rule.weight_decay * w + mean / (std::sqrt(variance) + rule.eps));
    }
    assert(!slots.copy);
  }

 private:
  static double score(const HeadSlice& in, int64_t i, int64_t j) {
    return dot(in.q + i * in.stride, in.k + j * in.stride, in.width) /
           std::sqrt(static_cast<double>(in.width));
  }
};

}  // namespace

std::unique_ptr<Ops> make_reference_ops() { return std::make_unique<ReferenceOps>(); }

}  // namespace trainlaunch
