// The f64 reference against what is known from elsewhere: finite differences, closed forms, and
// numbers that another implementation published or printed.

#include <doctest/doctest.h>

#include <functional>

#include "ops/convert.h"
#include "tests/unit/ops_testing.h"

using namespace trainlaunch;
using namespace trainlaunch::testing;

namespace {

struct Reference {
  std::unique_ptr<Ops> ops = make_reference_ops();
  std::unique_ptr<Stream> stream = host_stream();
};

double dot(const Tensor<double>& a, const Tensor<double>& b) {
  double s = 0;
  for (size_t i = 0; i < a.data.size(); ++i) s += a.data[i] * b.data[i];
  return s;
}

// Every element of `gradient` against (f(x+h) - f(x-h)) / 2h. With h = 1e-5 the truncation is near
// h^2 = 1e-10 and the rounding near 1e-16 |f| / h = 1e-10 for the small sums used here.
void check_gradient(const std::function<double()>& f, Tensor<double>& x,
                    const Tensor<double>& gradient) {
  REQUIRE(x.size() == gradient.size());
  constexpr double h = 1e-5;
  for (int64_t i = 0; i < x.size(); ++i) {
    const double kept = x[i];
    x[i] = kept + h;
    const double above = f();
    x[i] = kept - h;
    const double below = f();
    x[i] = kept;
    const double want = (above - below) / (2 * h);
    REQUIRE(std::abs(gradient.data[i] - want) <= 1e-8 * (1 + std::abs(want)));
  }
}

// What an accumulated output starts from in these tests, taken away again before comparing.
constexpr double start = 3.0;
Tensor<double> started(std::initializer_list<int64_t> shape) {
  Tensor<double> t(shape);
  for (double& x : t.data) x = start;
  return t;
}
Tensor<double> gained(const Tensor<double>& t) {
  Tensor<double> r = t.clone();
  for (double& x : r.data) x -= start;
  return r;
}

}  // namespace

TEST_CASE("reference: products with every transposition") {
  Reference r;
  // [1 2 3; 4 5 6] x [1 0; 2 1; 0 3] = [5 11; 14 23]
  const Tensor<double> a({2, 3}, {1, 2, 3, 4, 5, 6}), at({3, 2}, {1, 4, 2, 5, 3, 6}),
      b({3, 2}, {1, 0, 2, 1, 0, 3}), bt({2, 3}, {1, 2, 0, 0, 1, 3});
  const std::vector<double> want = {5, 11, 14, 23};
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      Tensor<double> c = started({2, 2});
      Gemm g{.a = ta ? at : a, .b = tb ? bt : b, .c = c, .transposed_a = ta, .transposed_b = tb};
      r.ops->gemm(*r.stream, g);
      CHECK(c.data == want);
      g.accumulate = true;
      r.ops->gemm(*r.stream, g);
      CHECK(c.data == std::vector<double>{10, 22, 28, 46});
    }
  }
}

TEST_CASE("reference: bias and GELU in a product, and the way back") {
  Reference r;
  auto x = random<double>({5, 3}, 1), w = random<double>({3, 7}, 2), bias = random<double>({7}, 3),
       dy = random<double>({5, 7}, 4);
  Tensor<double> pre({5, 7}), y({5, 7});
  auto loss = [&] {
    r.ops->gemm(*r.stream,
                {.a = x, .b = w, .c = y, .bias = bias, .act = Activation::gelu, .pre = pre});
    return dot(y, dy);
  };
  loss();
  Tensor<double> dpre({5, 7});
  through_gelu(*r.ops, *r.stream, pre, dy, unit_matrix(7), dpre);
  auto dx = started({5, 3}), dw = started({3, 7}), dbias = started({7});
  r.ops->gemm(*r.stream, {.a = dpre, .b = w, .c = dx, .transposed_b = true, .accumulate = true});
  r.ops->gemm(
      *r.stream,
      {.a = x, .b = dpre, .c = dw, .transposed_a = true, .accumulate = true, .dbias = dbias});
  check_gradient(loss, x, gained(dx));
  check_gradient(loss, w, gained(dw));
  check_gradient(loss, bias, gained(dbias));
}

TEST_CASE("reference: what a product may end with besides") {
  Reference r;
  const auto x = random<double>({5, 3}, 1), w = random<double>({3, 7}, 2),
             bias = random<double>({7}, 3), stream = random<double>({5, 7}, 4),
             pre = random<double>({5, 7}, 5, 3.0);
  Tensor<double> plain({5, 7}), linear({5, 7}), got({5, 7}), want({5, 7});
  r.ops->gemm(*r.stream, {.a = x, .b = w, .c = plain});
  r.ops->gemm(*r.stream, {.a = x, .b = w, .c = linear, .bias = bias});
  SUBCASE("the residual stream") {
    r.ops->gemm(*r.stream, {.a = x, .b = w, .c = got, .bias = bias, .add = stream});
    for (int64_t i = 0; i < want.size(); ++i) want[i] = linear[i] + stream.data[i];
  }
  SUBCASE("the gradient through the activation before it") {
    r.ops->gemm(*r.stream, {.a = x, .b = w, .c = got, .back = pre});
    through_gelu(*r.ops, *r.stream, pre, plain, unit_matrix(7), want);
  }
  for (int64_t i = 0; i < want.size(); ++i)
    CHECK(got[i] == doctest::Approx(want[i]).epsilon(1e-14));
}

// Values of torch.nn.functional.gelu(x, approximate="tanh") in float64, PyTorch 1.13.
TEST_CASE("reference: GELU is the tanh form") {
  Reference r;
  const Tensor<double> x({4, 1}, {-1, 0, 1, 3}), one({1, 1}, {1});
  Tensor<double> y({4, 1});
  r.ops->gemm(*r.stream, {.a = x, .b = one, .c = y, .act = Activation::gelu});
  CHECK(y[0] == doctest::Approx(-0.15880800939172324).epsilon(1e-14));
  CHECK(y[1] == 0.0);
  CHECK(y[2] == doctest::Approx(0.8411919906082768).epsilon(1e-14));
  CHECK(y[3] == doctest::Approx(2.996362607918227).epsilon(1e-14));
}

TEST_CASE("reference: embedding") {
  Reference r;
  constexpr int64_t B = 3, T = 4, C = 5, V = 6;
  auto tokens = random_ids({B, T}, 1, V);
  auto table = random<double>({V, C}, 2), positions = random<double>({T + 2, C}, 3),
       dout = random<double>({B * T, C}, 4);
  Tensor<double> out({B * T, C});
  auto loss = [&] {
    r.ops->embed(*r.stream, {tokens, table, positions, out});
    return dot(out, dout);
  };
  loss();
  auto dtable = started({V, C}), dpositions = started({T + 2, C});
  r.ops->embed_back(*r.stream, {tokens, dout, dtable, dpositions});
  check_gradient(loss, table, gained(dtable));
  check_gradient(loss, positions, gained(dpositions));
}

TEST_CASE("reference: layer norm") {
  Reference r;
  constexpr int64_t rows = 4, C = 7;
  auto x = random<double>({rows, C}, 1), gain = random<double>({C}, 2),
       bias = random<double>({C}, 3), dy = random<double>({rows, C}, 4);
  Tensor<double> y({rows, C}), mean({rows}), rstd({rows});
  auto loss = [&] {
    r.ops->norm(*r.stream, {x, gain, bias, y, mean, rstd});
    return dot(y, dy);
  };
  loss();
  auto dx = started({rows, C}), dgain = started({C}), dbias = started({C});
  r.ops->norm_back(*r.stream, {x, dy, gain, mean, rstd, dx, dgain, dbias});
  check_gradient(loss, x, gained(dx));
  check_gradient(loss, gain, gained(dgain));
  check_gradient(loss, bias, gained(dbias));

  // Rows of gain 1 and bias 0 have mean 0 and variance v / (v + 1e-5).
  for (double& g : gain.data) g = 1;
  for (double& b : bias.data) b = 0;
  loss();
  for (int64_t i = 0; i < rows; ++i) {
    double sum = 0, squares = 0, v = 0;
    for (int64_t c = 0; c < C; ++c) {
      sum += y[i * C + c];
      squares += y[i * C + c] * y[i * C + c];
      v += (x[i * C + c] - mean[i]) * (x[i * C + c] - mean[i]) / C;
    }
    CHECK(std::abs(sum) < 1e-14);
    CHECK(squares / C == doctest::Approx(v / (v + 1e-5)).epsilon(1e-13));
  }
}

TEST_CASE("reference: attention") {
  Reference r;
  constexpr int64_t B = 2, T = 5, H = 3, C = 6;
  auto qkv = random<double>({B * T, 3 * C}, 1), dout = random<double>({B * T, C}, 2);
  Tensor<double> out({B * T, C}), lse({B, H, T}), dqkv({B * T, 3 * C});
  auto loss = [&] {
    r.ops->attention(*r.stream, {B, T, H, qkv, out, lse});
    return dot(out, dout);
  };
  loss();
  r.ops->attention_back(*r.stream, {B, T, H, qkv, out, lse, dout, dqkv});
  check_gradient(loss, qkv, dqkv);

  SUBCASE("the first token sees itself only") {
    for (int64_t s = 0; s < B; ++s) {
      for (int64_t c = 0; c < C; ++c) {
        CHECK(out[s * T * C + c] == doctest::Approx(qkv[s * T * 3 * C + 2 * C + c]).epsilon(1e-14));
      }
    }
  }
  SUBCASE("equal keys mix what came before in equal parts") {
    for (int64_t i = 0; i < B * T; ++i) {
      for (int64_t c = 0; c < C; ++c) qkv[i * 3 * C + C + c] = 0.5;
    }
    loss();
    for (int64_t t = 0; t < T; ++t) {
      double mean = 0;
      for (int64_t j = 0; j <= t; ++j) mean += qkv[j * 3 * C + 2 * C] / (t + 1);
      CHECK(out[t * C] == doctest::Approx(mean).epsilon(1e-14));
    }
  }
}

TEST_CASE("reference: attention of the last queries only is a part of all") {
  Reference r;
  constexpr int64_t B = 2, T = 7, H = 3, C = 6;
  const auto qkv = random<double>({B * T, 3 * C}, 1);
  Tensor<double> out({B * T, C}), lse({B, H, T});
  r.ops->attention(*r.stream, {B, T, H, qkv, out, lse});
  for (const int64_t first : {1, 4, 6}) {
    const int64_t queries = T - first;
    Tensor<double> last({B * queries, C}), last_lse({B, H, queries});
    r.ops->attention(*r.stream, {B, T, H, qkv, last, last_lse, first});
    for (int64_t s = 0; s < B; ++s)
      for (int64_t i = 0; i < queries; ++i) {
        for (int64_t c = 0; c < C; ++c)
          CHECK(last[(s * queries + i) * C + c] == out[(s * T + first + i) * C + c]);
        for (int64_t h = 0; h < H; ++h)
          CHECK(last_lse[(s * H + h) * queries + i] == lse[(s * H + h) * T + first + i]);
      }
  }
}

TEST_CASE("reference: head and loss") {
  Reference r;
  constexpr int64_t rows = 6, C = 4, V = 9;
  auto x = random<double>({rows, C}, 1), weight = random<double>({V, C}, 2);
  auto targets = random_ids({rows}, 3, V);
  targets[1] = targets[4] = -1;
  Tensor<double> loss({1}), count({1}), dx({rows, C});
  auto dweight = started({V, C});
  auto forward = [&] {
    loss[0] = count[0] = 0;
    r.ops->head_loss(*r.stream, {x, weight, targets, loss, count, {}, {}});
    return loss[0];
  };
  const double total = forward();
  CHECK(count[0] == rows - 2);
  r.ops->head_loss(*r.stream, {x, weight, targets, loss, count, dx, dweight});
  CHECK(loss[0] == 2 * total);
  CHECK(count[0] == 2 * (rows - 2));
  check_gradient(forward, x, dx);
  check_gradient(forward, weight, gained(dweight));
  Tensor<double> afresh({V, C}, std::vector<double>(V * C, NAN));
  r.ops->head_loss(*r.stream, {x, weight, targets, loss, count, dx, afresh, false});
  check_gradient(forward, weight, afresh);

  for (double& w : weight.data) w = 0;  // every token equally likely
  CHECK(forward() == doctest::Approx((rows - 2) * std::log(V)).epsilon(1e-14));
}

// Two steps from w = 1 with g = 0.5, then 0.25; lr 0.1, betas 0.5 and 0.75, decay 1/8, eps 0:
//   m = 0.25, v = 0.0625; corrected 0.5 and 0.25: w -= 0.1 (w/8 + 0.5 / 0.5)
//   m = 0.25, v = 0.0625; corrected 1/3 and 1/7:  w -= 0.1 (w/8 + sqrt(7) / 3)
TEST_CASE("reference: AdamW by hand") {
  Reference r;
  Tensor<double> w({1}), g({1}), m({1}), v({1}), scalars({update_scalars});
  const Rule rule{.beta1 = 0.5f, .beta2 = 0.75f, .eps = 0.0f, .weight_decay = 0.125f};
  w[0] = 1;
  scalars[learning_rate] = 0.1;
  scalars[grad_scale] = 0.125;
  g[0] = 4;
  scalars[correction1] = 0.5, scalars[correction2] = 0.25;
  r.ops->update(*r.stream, rule, {w, g, m, v}, scalars);
  const double first = 1 - 0.1 * (0.125 + 1);
  CHECK(w[0] == doctest::Approx(first).epsilon(1e-15));
  g[0] = 2;
  scalars[correction1] = 0.75, scalars[correction2] = 1 - 0.75 * 0.75;
  r.ops->update(*r.stream, rule, {w, g, m, v}, scalars);
  CHECK(m[0] == 0.25);
  CHECK(v[0] == 0.0625);
  CHECK(w[0] == doctest::Approx(first - 0.1 * (0.125 * first + std::sqrt(7.0) / 3)).epsilon(1e-15));
}

// torch.optim.AdamW (PyTorch 1.13, float64), lr 0.01, betas 0.9 and 0.95, eps 1e-8, decay 0.1. The
// betas of a Rule are f32: 1 - 0.9f is off by 2.4e-7 of 0.1, which is 2.4e-9 of a weight per step.
TEST_CASE("reference: AdamW as PyTorch does it") {
  Reference r;
  Tensor<double> w({2}, {1, -0.5}), m({2}), v({2}), scalars({update_scalars});
  const double grads[3][2] = {{0.5, -2}, {-0.25, 1}, {1.5, 0.125}};
  const double weights[3][2] = {{0.9890000002, -0.48950000005},
                                {0.9853273057873828, -0.48632680558621694},
                                {0.9777659477978327, -0.48410693311739444}};
  scalars[learning_rate] = 0.01;
  scalars[grad_scale] = 1;
  for (int step = 0; step < 3; ++step) {
    const Tensor<double> g({2}, {grads[step][0], grads[step][1]});
    scalars[correction1] = 1 - std::pow(0.9, step + 1);
    scalars[correction2] = 1 - std::pow(0.95, step + 1);
    r.ops->update(*r.stream, {.weight_decay = 0.1f}, {w, g, m, v}, scalars);
    CHECK(std::abs(w[0] - weights[step][0]) < 1e-8);
    CHECK(std::abs(w[1] - weights[step][1]) < 1e-8);
  }
}

TEST_CASE("reference: sums, squares, copies") {
  Reference r;
  Tensor<double> a({4}, {1, 2, 3, 4}), b({4}, {10, 20, 30, 40}), out({4}, {11, 22, 33, 44}),
      tiles({2});
  const View parts[] = {a, b, out};
  r.ops->sum(*r.stream, out, parts);
  CHECK(out.data == std::vector<double>{22, 44, 66, 88});
  r.ops->sumsq(*r.stream, a, 2, tiles);
  CHECK(tiles.data == std::vector<double>{5, 25});
  r.ops->fill(*r.stream, a, -2);
  CHECK(a.data == std::vector<double>{-2, -2, -2, -2});

  Tensor<float> f({4});
  std::vector<uint16_t> half(4);
  const View bf16(half.data(), DType::bf16, {4});
  // Halfway between two bf16 numbers goes to the even one, up from 1 + 3/256, down from 1 + 1/256.
  const Tensor<double> odd({4}, {1 + 1.0 / 256, 1 + 3.0 / 256, -INFINITY, NAN});
  r.ops->copy(*r.stream, odd, f);
  r.ops->copy(*r.stream, f, bf16);
  r.ops->copy(*r.stream, bf16, out);
  CHECK(out[0] == 1.0);
  CHECK(out[1] == 1 + 4.0 / 256);
  CHECK(out[2] == -INFINITY);
  CHECK(std::isnan(out[3]));
}

TEST_CASE("rounding to bf16 by chance") {
  constexpr uint32_t step = 3;
  constexpr uint64_t seed = 11;
  SUBCASE("is right on average") {
    for (const float x : {1.0f + 1.0f / 1024, -3.14159f, 1e-20f, 0.1f}) {
      constexpr int n = 20'000;
      double sum = 0;
      for (uint64_t e = 0; e < n; ++e)
        sum += float_of(rounded_bf16(x, rounding_bits(seed, step, e)));
      // Neighbours are 2^-7 of x apart at most; the mean of n is off by a fraction of that.
      const double deviation = std::abs(x) / 128 / 2 / std::sqrt(double{n});
      CHECK(std::abs(sum / n - x) < 4 * deviation);
    }
  }
  SUBCASE("changes no number that is one already, nor what is none") {
    for (const uint16_t random : {0, 1, 0x8000, 0xffff}) {
      for (const float x : {0.0f, -1.5f, 256.0f, INFINITY, -INFINITY})
        CHECK(float_of(rounded_bf16(x, random)) == x);
      CHECK(std::isnan(float_of(rounded_bf16(NAN, random))));
    }
  }
  SUBCASE("differs from element to element, step to step and seed to seed") {
    int equal = 0;
    for (uint64_t e = 0; e < 1000; ++e) {
      equal += rounding_bits(seed, step, e) == rounding_bits(seed, step, e + 1);
      equal += rounding_bits(seed, step, e) == rounding_bits(seed, step + 1, e);
      equal += rounding_bits(seed, step, e) == rounding_bits(seed + 1, step, e);
    }
    CHECK(equal < 10);  // of 65,536 values
  }
}
