// The CPU operations in bf16 against the f64 reference, with every set of kernels that this machine
// can run, and with products by oneDNN.
//
// The reference gets the same numbers, rounded to bf16 beforehand. What is wide may be off by f32's
// roundings, as in ops_cpu_test.cc; what is bf16 also by half a unit in the last of its 8 bits,
// which is 2^-8 of it. Where an operation rounds between two steps (a probability before the
// product that makes a gradient of it), as much again for every factor.

#include <doctest/doctest.h>

#include <functional>

#include "ops/convert.h"
#include "ops/cpu/cpu_ops.h"
#include "tests/unit/ops_testing.h"

using namespace trainlaunch;
using namespace trainlaunch::testing;

namespace {

using F32 = Tensor<float>;
using F64 = Tensor<double>;
using B16 = Tensor<Bf16>;

constexpr double half_unit = 1.0 / 256;
constexpr double f32_epsilon = 1.2e-7;

B16 rounded(const F32& x) {
  B16 y;
  for (const float v : x.data) y.data.push_back({bf16_of(v)});
  y.view = View(y.data.data(), DType::bf16, {x.size()});
  y.view.n = x.view.n;
  y.view.shape = x.view.shape;
  return y;
}
B16 random_bf16(std::initializer_list<int64_t> shape, uint64_t seed, double scale = 1.0) {
  return rounded(random<float>(shape, seed, scale));
}
F64 widened(const B16& x) {
  F64 y;
  for (const Bf16 v : x.data) y.data.push_back(static_cast<double>(float_of(v.bits)));
  y.view = x.view;
  y.view.t = DType::f64;
  y.view.p = y.data.data();
  return y;
}
double value(Bf16 x) { return static_cast<double>(float_of(x.bits)); }
double value(float x) { return static_cast<double>(x); }

// |got - want| <= relative |want| + absolute
template <class T>
void check_close(const Tensor<T>& got, const F64& want, double relative, double absolute) {
  REQUIRE(got.data.size() == want.data.size());
  double worst = 0;
  for (size_t i = 0; i < got.data.size(); ++i) {
    const double allowed = relative * std::abs(want.data[i]) + absolute;
    const double off = std::abs(value(got.data[i]) - want.data[i]) / allowed;
    worst = off <= worst ? worst : off;  // also when off is NaN
  }
  CHECK(worst <= 1);
}

struct Cpu {
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Stream> stream = host_stream();
  std::vector<float> memory;
  bool library;

  Cpu(int threads, const Kernels& kernels, const OpsLimits& limits, ProductsBy by)
      : ops(make_cpu_ops(threads, kernels, DType::bf16, by)),
        memory(ops->scratch_bytes(limits) / sizeof(float) + 32),
        library(by == ProductsBy::library) {
    void* p = memory.data();
    size_t space = memory.size() * sizeof(float);
    std::align(64, space - 64, p, space);
    ops->use_scratch(View(p, DType::u8, {static_cast<int64_t>(space)}));
  }
};

constexpr OpsLimits small = {.sequences = 3, .context = 150, .width = 80, .heads = 2, .vocab = 300};

void for_each_cpu(const OpsLimits& limits, const std::function<void(Cpu&)>& f) {
  for (const Kernels& k : kernels()) {
    for (const int threads : {1, 3}) {
      for (const ProductsBy by : {ProductsBy::kernels, ProductsBy::library}) {
        INFO(k.name, " kernels, ", threads, " threads, products by ", static_cast<int>(by));
        Cpu cpu(threads, k, limits, by);
        f(cpu);
      }
    }
  }
}

const std::unique_ptr<Ops> reference = make_reference_ops();
const std::unique_ptr<Stream> host = host_stream();

}  // namespace

TEST_CASE("bf16: types") {
  const auto ops = make_cpu_ops(1, SameBits::same_threads, DType::bf16);
  CHECK(ops->dtype() == DType::bf16);
  CHECK(ops->wide() == DType::f32);
  CHECK(best_products<Bf16>(SameBits::any_threads) == ProductsBy::kernels);
  CHECK(best_products<float>(SameBits::same_threads) == ProductsBy::kernels);
}

TEST_CASE("bf16: products") {
  struct Case {
    int64_t m, n, k;
  };
  for (const Case& shape : {Case{1, 1, 1},
                            {2, 1030, 37},
                            {7, 5, 3},
                            {33, 80, 17},
                            {65, 240, 80},
                            {100, 31, 450},
                            {20, 50, 4100}}) {  // beyond what stays in registers
    const int64_t m = shape.m, n = shape.n, k = shape.k;
    const B16 a = random_bf16({m, k}, 1), at = random_bf16({k, m}, 2), b = random_bf16({k, n}, 3),
              bt = random_bf16({n, k}, 4), bias = random_bf16({n}, 5),
              third = random_bf16({m, n}, 6, 3.0);
    const F32 start = random<float>({m, n}, 7);
    const F64 a64 = widened(a), at64 = widened(at), b64 = widened(b), bt64 = widened(bt),
              bias64 = widened(bias), third64 = widened(third);
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        // plain to bf16, plain to f32, accumulated, bias, GELU and pre, residual, back
        for (const int kind : {0, 1, 2, 3, 4, 5, 6}) {
          INFO("m ", m, " n ", n, " k ", k, " ta ", ta, " tb ", tb, " kind ", kind);
          const auto describe = [&](View av, View bv, View c, View biasv, View pre, View other) {
            return Gemm{.a = av,
                        .b = bv,
                        .c = c,
                        .transposed_a = ta,
                        .transposed_b = tb,
                        .accumulate = kind == 2,
                        .bias = kind >= 3 && kind <= 5 ? biasv : View(),
                        .act = kind == 4 ? Activation::gelu : Activation::none,
                        .pre = kind == 4 ? pre : View(),
                        .add = kind == 5 ? other : View(),
                        .back = kind == 6 ? other : View()};
          };
          F64 want = start.as<double>(), want_pre({m, n});
          reference->gemm(
              *host, describe(ta ? at64 : a64, tb ? bt64 : b64, want, bias64, want_pre, third64));
          const double sum = (static_cast<double>(k) + 8) * f32_epsilon;
          // oneDNN's sum is rounded before more is done to it; few are larger than this.
          const double rounding = half_unit * (1.7 * std::sqrt(static_cast<double>(k)) + 2);
          for_each_cpu(small, [&](Cpu& cpu) {
            const double between = cpu.library && kind >= 3 ? rounding : 0;
            F32 wide_c = start.clone();
            B16 c({m, n}), pre({m, n});
            const bool to_wide = kind == 1 || kind == 2;
            cpu.ops->gemm(*cpu.stream, describe(ta ? at : a, tb ? bt : b,
                                                to_wide ? wide_c.view : c.view, bias, pre, third));
            if (to_wide) {
              check_close(wide_c, want, sum, sum);
            } else {
              check_close(c, want, half_unit + sum, 2 * half_unit * half_unit + sum + between);
            }
            if (kind == 4) check_close(pre, want_pre, half_unit + sum, sum + between);
          });
        }
      }
    }
  }
}

TEST_CASE("bf16: bias and GELU backwards") {
  constexpr int64_t rows = 450, n = 131;
  const B16 pre = random_bf16({rows, n}, 1, 6.0), dy = random_bf16({rows, n}, 2);
  const F64 one64 = unit_matrix(n);
  B16 one({n, n});
  reference->copy(*host, one64, one);
  F64 want({rows, n}), want_bias({n});
  through_gelu(*reference, *host, widened(pre), widened(dy), one64, want);
  add_bias_gradient(*reference, *host, widened(dy), F64({n, n}), want_bias);
  for_each_cpu(small, [&](Cpu& cpu) {
    B16 dx({rows, n});
    F32 dbias({n});
    through_gelu(*cpu.ops, *cpu.stream, pre, dy, one, dx);
    add_bias_gradient(*cpu.ops, *cpu.stream, dy, F32({n, n}), dbias);
    check_close(dx, want, half_unit, 1e-5);
    check_close(dbias, want_bias, rows * f32_epsilon, rows * f32_epsilon);
  });
}

TEST_CASE("bf16: embedding") {
  constexpr int64_t B = 3, T = 50, V = 11, C = 131;
  const auto tokens = random_ids({B, T}, 1, V);
  const B16 table = random_bf16({V, C}, 2), positions = random_bf16({T + 1, C}, 3),
            dout = random_bf16({B * T, C}, 4);
  F64 want({B * T, C}), want_table({V, C}), want_positions({T + 1, C});
  reference->embed(*host, {tokens, widened(table), widened(positions), want});
  reference->embed_back(*host, {tokens, widened(dout), want_table, want_positions});
  for_each_cpu(small, [&](Cpu& cpu) {
    B16 out({B * T, C});
    F32 dtable({V, C}), dpositions({T + 1, C});
    cpu.ops->embed(*cpu.stream, {tokens, table, positions, out});
    cpu.ops->embed_back(*cpu.stream, {tokens, dout, dtable, dpositions});
    check_close(out, want, half_unit * 1.001, 0);
    check_close(dtable, want_table, 1e-5, 1e-5);
    check_close(dpositions, want_positions, 1e-6, 1e-6);
  });
}

TEST_CASE("bf16: layer norm") {
  for (const auto& shape : {std::pair<int64_t, int64_t>{1, 80}, {37, 13}, {450, 131}}) {
    const int64_t rows = shape.first, C = shape.second;
    INFO("rows ", rows, " C ", C);
    const B16 x = random_bf16({rows, C}, 1), gain = random_bf16({C}, 2), bias = random_bf16({C}, 3),
              dy = random_bf16({rows, C}, 4), start = random_bf16({rows, C}, 5);
    F64 y64({rows, C}), mean64({rows}), rstd64({rows}), dgain64({C}), dbias64({C});
    F64 dx64 = widened(start);
    const F64 x64 = widened(x), gain64 = widened(gain), dy64 = widened(dy);
    reference->norm(*host, {x64, gain64, widened(bias), y64, mean64, rstd64});
    reference->norm_back(*host, {x64, dy64, gain64, mean64, rstd64, dx64, dgain64, dbias64});
    const double sum = (static_cast<double>(rows) + 32) * f32_epsilon;
    for_each_cpu(small, [&](Cpu& cpu) {
      B16 y({rows, C}), dx({rows, C});
      dx.data = start.data;
      dx.view.p = dx.data.data();
      F32 mean({rows}), rstd({rows}), dgain({C}), dbias({C});
      cpu.ops->norm(*cpu.stream, {x, gain, bias, y, mean, rstd});
      cpu.ops->norm_back(*cpu.stream, {x, dy, gain, mean, rstd, dx, dgain, dbias});
      check_close(mean, mean64, 1e-6, 1e-6);
      check_close(rstd, rstd64, 2e-6, 0);
      check_close(y, y64, half_unit, 1e-5);
      check_close(dx, dx64, half_unit, 2e-5);
      check_close(dgain, dgain64, sum, sum);
      check_close(dbias, dbias64, sum, sum);
    });
  }
}

TEST_CASE("bf16: attention") {
  struct Case {
    int64_t B, T, H, width;  // of a head
  };
  for (const Case& shape : {Case{1, 1, 1, 1}, {2, 5, 3, 3}, {2, 64, 1, 32}, {1, 150, 2, 40}}) {
    const int64_t B = shape.B, T = shape.T, H = shape.H, C = H * shape.width;
    INFO("B ", B, " T ", T, " H ", H, " width ", shape.width);
    const B16 qkv = random_bf16({B * T, 3 * C}, 1, 2.0), dout = random_bf16({B * T, C}, 2);
    F64 out64({B * T, C}), lse64({B, H, T}), dqkv64({B * T, 3 * C});
    reference->attention(*host, {B, T, H, widened(qkv), out64, lse64});
    for_each_cpu({B, T, C, H, 10}, [&](Cpu& cpu) {
      B16 out({B * T, C}), dqkv({B * T, 3 * C});
      F32 lse({B, H, T});
      cpu.ops->attention(*cpu.stream, {B, T, H, qkv, out, lse});
      check_close(lse, lse64, 1e-5, 1e-5);
      check_close(out, out64, 2 * half_unit, 1e-4);
      // The backward pass is given what forward gave: its output is rounded.
      F64 given = widened(out), lse_given = lse.as<double>();
      reference->attention_back(*host,
                                {B, T, H, widened(qkv), given, lse_given, widened(dout), dqkv64});
      cpu.ops->attention_back(*cpu.stream, {B, T, H, qkv, out, lse, dout, dqkv});
      check_close(dqkv, dqkv64, 2 * half_unit, 2e-3);
    });
  }
}

TEST_CASE("bf16: head and loss") {
  struct Case {
    int64_t rows, C, V;
  };
  for (const Case& shape : {Case{5, 80, 256}, {450, 33, 300}, {257, 8, 5025}}) {
    const int64_t rows = shape.rows, C = shape.C, V = shape.V;
    INFO("rows ", rows, " C ", C, " V ", V);
    const B16 x = random_bf16({rows, C}, 1), weight = random_bf16({V, C}, 2);
    auto targets = random_ids({rows}, 4, V);
    for (int64_t i = 1; i < rows; i += 5) targets[i] = -1;
    F64 loss64({1}), count64({1}), dx64({rows, C}), dweight64({V, C});
    reference->head_loss(*host,
                         {widened(x), widened(weight), targets, loss64, count64, dx64, dweight64});
    for_each_cpu({1, rows, C, 1, V}, [&](Cpu& cpu) {
      F64 loss({1}), count({1});
      B16 dx({rows, C});
      F32 dweight({V, C});
      cpu.ops->head_loss(*cpu.stream, {x, weight, targets, loss, count, dx, dweight});
      CHECK(count[0] == count64[0]);
      CHECK(loss[0] == doctest::Approx(loss64[0]).epsilon(1e-5));
      // Each term of these sums has a probability, rounded, as a factor; they add up to about 2.
      check_close(dx, dx64, 2 * half_unit, 4 * half_unit);
      check_close(dweight, dweight64, half_unit, 4 * half_unit);
      const auto written = dweight.data;
      std::fill(dweight.data.begin(), dweight.data.end(), std::numeric_limits<float>::quiet_NaN());
      F64 loss2({1}), count2({1});
      cpu.ops->head_loss(*cpu.stream, {x, weight, targets, loss2, count2, dx, dweight, false});
      CHECK(dweight.data == written);
    });
  }
}

TEST_CASE("bf16: the weights that products read are the updated master, rounded") {
  constexpr int64_t n = 20'003;
  const F32 w = random<float>({n}, 1), g = random<float>({n}, 2);
  F64 scalars({update_scalars});
  scalars[learning_rate] = 0.05;
  scalars[grad_scale] = 0.25;
  scalars[correction1] = 0.1;
  scalars[correction2] = 0.05;
  scalars[update_step] = 7;
  for_each_cpu(small, [&](Cpu& cpu) {
    const auto plain = make_cpu_ops(1);
    F32 want = w.clone(), want_m({n}), want_v({n});
    plain->update(*host, {}, {want, g, want_m, want_v}, scalars);
    for (const bool stochastic : {false, true}) {
      F32 weight = w.clone(), m({n}), v({n});
      B16 copy({n});
      Rule rule;
      rule.stochastic = stochastic;
      rule.seed = 5;
      constexpr uint64_t element = 1'000'003;  // where this run begins in the whole space
      cpu.ops->update(*cpu.stream, rule, {weight, g, m, v, copy, element}, scalars);
      int wrong = 0;
      for (int64_t i = 0; i < n; ++i) {
        const uint16_t random = rounding_bits(5, 7, element + static_cast<uint64_t>(i));
        const uint16_t expected = stochastic ? rounded_bf16(weight[i], random) : bf16_of(weight[i]);
        wrong += copy[i].bits != expected;
      }
      CHECK(wrong == 0);
      check_close(weight, want.as<double>(), 1e-6, 1e-6);
    }
  });
}

TEST_CASE("bf16: special numbers survive rounding") {
  const F32 x({8}, {INFINITY, -INFINITY, NAN, 0.0f, 1.00390625f, 1.01171875f, 3.4e38f, 1e-40f});
  for_each_cpu(small, [&](Cpu& cpu) {
    B16 y({8});
    cpu.ops->copy(*cpu.stream, x, y);
    for (int i = 0; i < 8; ++i) CHECK(y[i].bits == bf16_of(x.data[static_cast<size_t>(i)]));
    CHECK(value(y[4]) == 1.0);       // halfway between two: to the even one
    CHECK(value(y[5]) == 1.015625);  // likewise
    CHECK(std::isinf(value(y[6])));  // beyond the largest
  });
}

namespace {

std::vector<std::vector<Bf16>> some_operations(int threads, ProductsBy by) {
  constexpr int64_t B = 3, T = 150, H = 2, C = 80;
  Cpu cpu(threads, kernels().front(), small, by);
  const B16 qkv = random_bf16({B * T, 3 * C}, 1), dout = random_bf16({B * T, C}, 2),
            weight = random_bf16({C, 4 * C}, 3), bias = random_bf16({4 * C}, 4);
  B16 out({B * T, C}), dqkv({B * T, 3 * C}), pre({B * T, 4 * C}), y({B * T, 4 * C}), dx({B * T, C});
  F32 lse({B, H, T});
  Ops& ops = *cpu.ops;
  ops.attention(*cpu.stream, {B, T, H, qkv, out, lse});
  ops.attention_back(*cpu.stream, {B, T, H, qkv, out, lse, dout, dqkv});
  ops.gemm(*cpu.stream,
           {.a = out, .b = weight, .c = y, .bias = bias, .act = Activation::gelu, .pre = pre});
  ops.gemm(*cpu.stream, {.a = y, .b = weight, .c = dx, .transposed_b = true, .back = dout});
  return {out.data, dqkv.data, pre.data, y.data, dx.data};
}

}  // namespace

TEST_CASE("bf16: equal inputs give equal bits, on any number of threads without oneDNN") {
  const auto same = [](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.end(), y.begin(), [](const auto& p, const auto& q) {
      return std::equal(p.begin(), p.end(), q.begin(),
                        [](Bf16 a, Bf16 b) { return a.bits == b.bits; });
    });
  };
  const auto one = some_operations(1, ProductsBy::kernels);
  for (const int threads : {2, 3, 5}) {
    CHECK(same(some_operations(threads, ProductsBy::kernels), one));
  }
  CHECK(same(some_operations(3, ProductsBy::library), some_operations(3, ProductsBy::library)));
}
