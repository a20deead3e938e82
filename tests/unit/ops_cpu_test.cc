// The CPU operations against the f64 reference, with every set of kernels that this machine can run
// and with one and three threads.
//
// Inputs are in [-1, 1]. A tolerance is given in units of f32's epsilon, 1.2e-7, times (1 +
// |want|). A sum of k such terms has partial sums near sqrt(k) and as many roundings with random
// signs, so its error is near sqrt(k) sqrt(k) / 2 epsilons: `k` is a wide but telling bound.
// Elementwise results get 8 for the few roundings and the 1 unit of exp.

#include <doctest/doctest.h>

#include <functional>
#include <limits>

#include "ops/cpu/cpu_ops.h"
#include "tests/unit/ops_testing.h"

using namespace trainlaunch;
using namespace trainlaunch::testing;

namespace {

using F32 = Tensor<float>;
using F64 = Tensor<double>;

struct Cpu {
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Stream> stream = host_stream();
  std::vector<std::byte> memory;

  Cpu(int threads, const Kernels& kernels, const OpsLimits& limits)
      : ops(make_cpu_ops(threads, kernels)), memory(ops->scratch_bytes(limits) + 64) {
    void* p = memory.data();
    size_t space = memory.size();
    std::align(64, space - 64, p, space);
    ops->use_scratch(View(p, DType::u8, {static_cast<int64_t>(memory.size() - 64)}));
  }
};

struct Reference {
  std::unique_ptr<Ops> ops = make_reference_ops();
  std::unique_ptr<Stream> stream = host_stream();
};

constexpr OpsLimits small = {.sequences = 3, .context = 150, .width = 80, .heads = 2, .vocab = 300};

void for_each_cpu(const OpsLimits& limits, const std::function<void(Cpu&)>& f) {
  for (const Kernels& k : kernels()) {
    for (const int threads : {1, 3}) {
      INFO(k.name, " kernels, ", threads, " threads");
      Cpu cpu(threads, k, limits);
      f(cpu);
    }
  }
}

// What memory may hold that is to be overwritten.
F32 nothing(std::initializer_list<int64_t> shape) {
  F32 t(shape);
  std::fill(t.data.begin(), t.data.end(), std::numeric_limits<float>::quiet_NaN());
  return t;
}

void check_close(const F32& got, const F64& want, double epsilons) {
  REQUIRE(got.data.size() == want.data.size());
  const double tolerance = epsilons * std::numeric_limits<float>::epsilon();
  double worst = 0;
  for (size_t i = 0; i < got.data.size(); ++i) {
    const double off = std::abs(got.data[i] - want.data[i]) / (1 + std::abs(want.data[i]));
    worst = off <= worst ? worst : off;  // also when off is NaN
  }
  CHECK(worst <= tolerance);
}

}  // namespace

TEST_CASE("cpu: products") {
  struct Case {
    int64_t m, n, k;
  };
  const Reference r;
  for (const Case& shape : {Case{1, 1, 1},
                            {1, 300, 80},
                            {3, 1100, 70},  // few rows, many columns
                            {7, 5, 3},
                            {33, 80, 17},
                            {64, 64, 64},
                            {65, 240, 80},
                            {100, 31, 450},
                            {17, 33, 1}}) {
    const int64_t m = shape.m, n = shape.n, k = shape.k;
    const F32 a = random<float>({m, k}, 1), at = random<float>({k, m}, 2),
              b = random<float>({k, n}, 3), bt = random<float>({n, k}, 4),
              bias = random<float>({n}, 5), start = random<float>({m, n}, 6),
              other = random<float>({m, n}, 7, 3.0);
    const F64 other64 = other.as<double>();
    const F64 a64 = a.as<double>(), at64 = at.as<double>(), b64 = b.as<double>(),
              bt64 = bt.as<double>(), bias64 = bias.as<double>();
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        // plain, accumulated, bias, GELU, GELU and pre, residual, back
        for (const int kind : {0, 1, 2, 3, 4, 5, 6}) {
          INFO("m ", m, " n ", n, " k ", k, " ta ", ta, " tb ", tb, " kind ", kind);
          const auto describe = [&](View av, View bv, View c, View biasv, View pre, View third) {
            return Gemm{.a = av,
                        .b = bv,
                        .c = c,
                        .transposed_a = ta,
                        .transposed_b = tb,
                        .accumulate = kind == 1,
                        .bias = kind >= 2 && kind <= 5 ? biasv : View(),
                        .act = kind == 3 || kind == 4 ? Activation::gelu : Activation::none,
                        .pre = kind == 4 ? pre : View(),
                        .add = kind == 5 ? third : View(),
                        .back = kind == 6 ? third : View()};
          };
          F64 want = start.as<double>(), want_pre({m, n});
          r.ops->gemm(*r.stream,
                      describe(ta ? at64 : a64, tb ? bt64 : b64, want, bias64, want_pre, other64));
          for_each_cpu(small, [&](Cpu& cpu) {
            F32 c = start.clone(), pre({m, n});
            cpu.ops->gemm(*cpu.stream, describe(ta ? at : a, tb ? bt : b, c, bias, pre, other));
            check_close(c, want, k + 8);
            if (kind == 4) check_close(pre, want_pre, k + 8);
          });
        }
      }
    }
  }
}

// Their sums pass through memory, in blocks of rows and in blocks of columns.
TEST_CASE("cpu: large gradients of a weight, written and added") {
  struct Case {
    int64_t in, out;
  };
  constexpr int64_t rows = 300;
  const Reference r;
  for (const Case& shape : {Case{900, 480}, {320, 1500}, {901, 479}}) {
    const int64_t in = shape.in, out = shape.out;
    INFO("in ", in, " out ", out);
    const F32 x = random<float>({rows, in}, 1), dy = random<float>({rows, out}, 2);
    F64 dw64({in, out}), dbias64({out});
    r.ops->gemm(*r.stream, {.a = x.as<double>(),
                            .b = dy.as<double>(),
                            .c = dw64,
                            .transposed_a = true,
                            .dbias = dbias64});
    F64 twice64 = dw64.clone(), dbias_twice64 = dbias64.clone();
    for (double& v : twice64.data) v *= 2;
    for (double& v : dbias_twice64.data) v *= 2;
    for_each_cpu({1, rows, std::max(in, out), 1, 1}, [&](Cpu& cpu) {
      F32 dw = nothing({in, out}), dbias({out});
      Gemm g{.a = x, .b = dy, .c = dw, .transposed_a = true, .dbias = dbias};
      cpu.ops->gemm(*cpu.stream, g);
      check_close(dw, dw64, rows);
      check_close(dbias, dbias64, rows);
      g.accumulate = true;
      cpu.ops->gemm(*cpu.stream, g);
      check_close(dw, twice64, 2 * rows);
      check_close(dbias, dbias_twice64, 2 * rows);
    });
  }
}

TEST_CASE("cpu: a product over nothing is its bias") {
  for_each_cpu(small, [](Cpu& cpu) {
    const F32 a({2, 0}), b({0, 3}), bias({3}, {1, 2, 3});
    F32 c({2, 3});
    cpu.ops->gemm(*cpu.stream, {.a = a, .b = b, .c = c, .bias = bias});
    CHECK(c.data == std::vector<float>{1, 2, 3, 1, 2, 3});
  });
}

TEST_CASE("cpu: products without scratch memory are right too") {
  const F32 a = random<float>({64, 48}, 1), b = random<float>({96, 64}, 2);
  F64 want({48, 96});
  const Reference r;
  r.ops->gemm(*r.stream, {.a = a.as<double>(),
                          .b = b.as<double>(),
                          .c = want,
                          .transposed_a = true,
                          .transposed_b = true});
  auto ops = make_cpu_ops(2);
  F32 c({48, 96});
  ops->gemm(*r.stream, {.a = a, .b = b, .c = c, .transposed_a = true, .transposed_b = true});
  check_close(c, want, 64);
}

TEST_CASE("cpu: exp is within 2 units in the last place") {
  for (const Kernels& k : kernels()) {
    INFO(k.name, " kernels");
    constexpr int64_t n = 400'000;
    F32 x({n}), y({n});
    for (int64_t i = 0; i < n; ++i) x[i] = -87.3f + 175.6f * static_cast<float>(i) / n;
    k.exp(x.data.data(), y.data.data(), n);
    double worst = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double want = std::exp(static_cast<double>(x[i]));
      const double unit_in_last_place = std::ldexp(1.0, std::ilogb(want) - 23);
      worst = std::max(worst, std::abs(y[i] - want) / unit_in_last_place);
    }
    CHECK(worst < 2);

    F32 odd({5}, {-INFINITY, -100, 0, 1000, NAN}), e({5});
    k.exp(odd.data.data(), e.data.data(), 5);
    CHECK(e[0] == 0);
    CHECK(e[1] == 0);
    CHECK(e[2] == 1);
    CHECK(e[3] > 2e38f);
    CHECK(std::isnan(e[4]));
  }
}

TEST_CASE("cpu: bias and GELU backwards") {
  const Reference r;
  for (const auto& shape : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {50, 67}, {450, 320}}) {
    const int64_t rows = shape.first, n = shape.second;
    INFO("rows ", rows, " n ", n);
    const F32 pre = random<float>({rows, n}, 1, 6.0), dy = random<float>({rows, n}, 2),
              start = random<float>({n}, 3);
    F64 want({rows, n}), want_bias = start.as<double>();
    const F64 one64 = unit_matrix(n);
    const F32 one = one64.as<float>();
    through_gelu(*r.ops, *r.stream, pre.as<double>(), dy.as<double>(), one64, want);
    add_bias_gradient(*r.ops, *r.stream, dy.as<double>(), F64({n, n}), want_bias);
    for_each_cpu(small, [&](Cpu& cpu) {
      F32 dx({rows, n}), dbias = start.clone();
      through_gelu(*cpu.ops, *cpu.stream, pre, dy, one, dx);
      check_close(dx, want, 16);
      add_bias_gradient(*cpu.ops, *cpu.stream, dy, F32({n, n}), dbias);
      check_close(dbias, want_bias, rows);
    });
  }
}

TEST_CASE("cpu: embedding") {
  const Reference r;
  for (const int64_t C : {1, 80, 131}) {
    constexpr int64_t B = 3, T = 50, V = 11;  // few tokens: many rows add to the same one
    const auto tokens = random_ids({B, T}, 1, V);
    const F32 table = random<float>({V, C}, 2), positions = random<float>({T + 1, C}, 3),
              dout = random<float>({B * T, C}, 4);
    F64 want({B * T, C}), want_table = table.as<double>(), want_positions = positions.as<double>();
    r.ops->embed(*r.stream, {tokens, table.as<double>(), positions.as<double>(), want});
    r.ops->embed_back(*r.stream, {tokens, dout.as<double>(), want_table, want_positions});
    for_each_cpu(small, [&](Cpu& cpu) {
      F32 out({B * T, C}), dtable = table.clone(), dpositions = positions.clone();
      cpu.ops->embed(*cpu.stream, {tokens, table, positions, out});
      cpu.ops->embed_back(*cpu.stream, {tokens, dout, dtable, dpositions});
      check_close(out, want, 1);
      check_close(dtable, want_table, B * T);
      check_close(dpositions, want_positions, B);
    });
  }
}

TEST_CASE("cpu: layer norm") {
  const Reference r;
  for (const auto& shape : {std::pair<int64_t, int64_t>{1, 1}, {1, 80}, {37, 13}, {450, 131}}) {
    const int64_t rows = shape.first, C = shape.second;
    INFO("rows ", rows, " C ", C);
    const F32 x = random<float>({rows, C}, 1), gain = random<float>({C}, 2),
              bias = random<float>({C}, 3), dy = random<float>({rows, C}, 4),
              start = random<float>({rows, C}, 5), start_gain = random<float>({C}, 6);
    F64 y64({rows, C}), mean64({rows}), rstd64({rows});
    F64 dx64 = start.as<double>(), dgain64 = start_gain.as<double>(), dbias64 = gain.as<double>();
    const F64 x64 = x.as<double>(), gain64 = gain.as<double>(), dy64 = dy.as<double>();
    r.ops->norm(*r.stream, {x64, gain64, bias.as<double>(), y64, mean64, rstd64});
    r.ops->norm_back(*r.stream, {x64, dy64, gain64, mean64, rstd64, dx64, dgain64, dbias64});
    for_each_cpu(small, [&](Cpu& cpu) {
      F32 y({rows, C}), mean({rows}), rstd({rows});
      F32 dx = start.clone(), dgain = start_gain.clone(), dbias = gain.clone();
      cpu.ops->norm(*cpu.stream, {x, gain, bias, y, mean, rstd});
      cpu.ops->norm_back(*cpu.stream, {x, dy, gain, mean, rstd, dx, dgain, dbias});
      check_close(mean, mean64, 8);
      check_close(rstd, rstd64, 16);
      check_close(y, y64, 16);
      check_close(dx, dx64, 32);
      check_close(dgain, dgain64, rows + 16);
      check_close(dbias, dbias64, rows);
    });
  }
}

TEST_CASE("cpu: attention") {
  struct Case {
    int64_t B, T, H, width;  // of a head
  };
  const Reference r;
  for (const Case& shape : {Case{1, 1, 1, 1},
                            {2, 5, 3, 3},
                            {1, 63, 2, 16},
                            {2, 64, 1, 32},
                            {3, 65, 2, 20},
                            {1, 150, 2, 40},
                            {1, 128, 4, 7}}) {
    const int64_t B = shape.B, T = shape.T, H = shape.H, width = shape.width;
    INFO("B ", B, " T ", T, " H ", H, " width ", width);
    const int64_t C = H * width;
    const F32 qkv = random<float>({B * T, 3 * C}, 1, 2.0), dout = random<float>({B * T, C}, 2);
    const F64 qkv64 = qkv.as<double>(), dout64 = dout.as<double>();
    F64 out64({B * T, C}), lse64({B, H, T}), dqkv64({B * T, 3 * C});
    r.ops->attention(*r.stream, {B, T, H, qkv64, out64, lse64});
    r.ops->attention_back(*r.stream, {B, T, H, qkv64, out64, lse64, dout64, dqkv64});
    for_each_cpu({B, T, C, H, 10}, [&](Cpu& cpu) {
      F32 out({B * T, C}), lse({B, H, T}), dqkv = random<float>({B * T, 3 * C}, 3);
      cpu.ops->attention(*cpu.stream, {B, T, H, qkv, out, lse});
      cpu.ops->attention_back(*cpu.stream, {B, T, H, qkv, out, lse, dout, dqkv});
      check_close(lse, lse64, width + 8);
      check_close(out, out64, width + 16);
      check_close(dqkv, dqkv64, 4 * width + T);
    });
  }
}

TEST_CASE("cpu: attention of the last queries only") {
  const Reference r;
  constexpr int64_t B = 2, T = 150, H = 2, C = 80;
  const F32 qkv = random<float>({B * T, 3 * C}, 1, 3.0);
  for (const int64_t first : {1, 63, 64, 100, 149}) {
    INFO("first ", first);
    const int64_t queries = T - first;
    F64 want({B * queries, C}), want_lse({B, H, queries});
    r.ops->attention(*r.stream, {B, T, H, qkv.as<double>(), want, want_lse, first});
    for_each_cpu(small, [&](Cpu& cpu) {
      F32 out({B * queries, C}), lse({B, H, queries});
      cpu.ops->attention(*cpu.stream, {B, T, H, qkv, out, lse, first});
      check_close(out, want, T);
      check_close(lse, want_lse, T);
    });
  }
}

TEST_CASE("cpu: attention does not look ahead") {
  constexpr int64_t T = 130, H = 2, C = 32, changed = 70;
  F32 qkv = random<float>({T, 3 * C}, 1);
  for_each_cpu({1, T, C, H, 10}, [&](Cpu& cpu) {
    F32 before({T, C}), after({T, C}), lse({1, H, T});
    cpu.ops->attention(*cpu.stream, {1, T, H, qkv, before, lse});
    F32 other = qkv.clone();
    for (int64_t c = 0; c < 3 * C; ++c) other[changed * 3 * C + c] = 5;
    cpu.ops->attention(*cpu.stream, {1, T, H, other, after, lse});
    for (int64_t i = 0; i < changed * C; ++i) REQUIRE(before[i] == after[i]);
    CHECK(before[changed * C] != after[changed * C]);
  });
}

TEST_CASE("cpu: large scores neither overflow nor vanish") {
  constexpr int64_t T = 70, C = 16;
  const F32 qkv = random<float>({T, 3 * C}, 1, 100.0);
  const F64 qkv64 = qkv.as<double>();
  F64 out64({T, C}), lse64({1, 1, T});
  const Reference r;
  r.ops->attention(*r.stream, {1, T, 1, qkv64, out64, lse64});
  for_each_cpu({1, T, C, 1, 10}, [&](Cpu& cpu) {
    F32 out({T, C}), lse({1, 1, T});
    cpu.ops->attention(*cpu.stream, {1, T, 1, qkv, out, lse});
    check_close(lse, lse64, 16);
    // A score near 1e4 is off by 1e4 epsilons, and so is what its exponential is multiplied with.
    check_close(out, out64, 4e4);
  });
}

TEST_CASE("cpu: head and loss") {
  struct Case {
    int64_t rows, C, V;
  };
  const Reference r;
  // 257 and 600 rows of a large vocabulary are several chunks.
  for (const Case& shape :
       {Case{1, 4, 2}, {5, 80, 256}, {450, 33, 300}, {257, 8, 50257}, {600, 3, 4099}}) {
    const int64_t rows = shape.rows, C = shape.C, V = shape.V;
    INFO("rows ", rows, " C ", C, " V ", V);
    const F32 x = random<float>({rows, C}, 1), weight = random<float>({V, C}, 2),
              start = random<float>({V, C}, 3);
    auto targets = random_ids({rows}, 4, V);
    for (int64_t i = 1; i < rows; i += 5) targets[i] = -1;
    F64 loss64({1}, {1.0}), count64({1}, {2.0}), dx64({rows, C}), dweight64 = start.as<double>();
    r.ops->head_loss(*r.stream, {x.as<double>(), weight.as<double>(), targets, loss64, count64,
                                 dx64, dweight64});
    F64 afresh64 = dweight64.clone();
    for (int64_t i = 0; i < afresh64.size(); ++i) afresh64[i] -= start.data[i];
    for_each_cpu({1, rows, C, 1, V}, [&](Cpu& cpu) {
      F64 loss({1}, {1.0}), count({1}, {2.0});
      F32 dx = random<float>({rows, C}, 5), dweight = start.clone();
      cpu.ops->head_loss(*cpu.stream, {x, weight, targets, loss, count, dx, dweight});
      CHECK(count[0] == count64[0]);
      CHECK(loss[0] == doctest::Approx(loss64[0]).epsilon((C + 16) * 1.2e-7));
      const double first_loss = loss[0], first_count = count[0];
      check_close(dx, dx64, C + 64);
      check_close(dweight, dweight64, rows + C);
      F32 afresh = nothing({V, C});
      cpu.ops->head_loss(*cpu.stream, {x, weight, targets, loss, count, dx, afresh, false});
      check_close(afresh, afresh64, rows + C);
      F64 only({1}, {1.0}), again({1}, {2.0});
      cpu.ops->head_loss(*cpu.stream, {x, weight, targets, only, again});
      CHECK(only[0] == first_loss);
      CHECK(again[0] == first_count);
    });
  }
}

TEST_CASE("cpu: a NaN reaches the loss") {
  for_each_cpu({1, 3, 2, 1, 20}, [](Cpu& cpu) {
    F32 x = random<float>({3, 2}, 1);
    x[2] = NAN;
    const F32 weight = random<float>({20, 2}, 2);
    const Tensor<int32_t> targets({3}, {1, 2, 3});
    F64 loss({1}), count({1});
    cpu.ops->head_loss(*cpu.stream, {x, weight, targets, loss, count});
    CHECK(std::isnan(loss[0]));
  });
}

TEST_CASE("cpu: AdamW") {
  const Reference r;
  constexpr int64_t n = 20'003;
  const F32 w = random<float>({n}, 1), g = random<float>({n}, 2);
  F64 scalars({update_scalars}), w64 = w.as<double>(), m64({n}), v64({n});
  const F64 g64 = g.as<double>();
  scalars[learning_rate] = 0.05;
  scalars[grad_scale] = 0.25;
  const Rule rule{.weight_decay = 0.1f};
  for (int step = 1; step <= 5; ++step) {
    scalars[correction1] = 1 - std::pow(0.9, step);
    scalars[correction2] = 1 - std::pow(0.95, step);
    r.ops->update(*r.stream, rule, {w64, g64, m64, v64}, scalars);
  }
  for_each_cpu(small, [&](Cpu& cpu) {
    F32 weight = w.clone(), m({n}), v({n});
    for (int step = 1; step <= 5; ++step) {
      scalars[correction1] = 1 - std::pow(0.9, step);
      scalars[correction2] = 1 - std::pow(0.95, step);
      cpu.ops->update(*cpu.stream, rule, {weight, g, m, v}, scalars);
    }
    check_close(weight, w64, 16);
    check_close(m, m64, 8);
    check_close(v, v64, 8);
  });
}

TEST_CASE("cpu: sums, squares, copies, fills") {
  const Reference r;
  for (const int64_t n : {int64_t{1}, int64_t{1023}, int64_t{50'000}}) {
    const F32 a = random<float>({n}, 1), b = random<float>({n}, 2), c = random<float>({n}, 3);
    for_each_cpu(small, [&](Cpu& cpu) {
      // The same chain of roundings, so the same bits.
      F32 want({n}), out({n});
      for (int64_t i = 0; i < n; ++i) want[i] = a.data[i] + b.data[i] + c.data[i];
      const View parts[] = {a, b, c};
      cpu.ops->sum(*cpu.stream, out, parts);
      CHECK(out.data == want.data);
      F32 last = c.clone();
      const View aliased[] = {a, b, last};
      cpu.ops->sum(*cpu.stream, last, aliased);
      CHECK(last.data == want.data);

      F64 wide({n});
      std::vector<uint16_t> half(n);
      cpu.ops->copy(*cpu.stream, a, wide);
      cpu.ops->copy(*cpu.stream, wide, out);
      CHECK(out.data == a.data);
      const View bf16(half.data(), DType::bf16, {n});
      cpu.ops->copy(*cpu.stream, a, bf16);
      cpu.ops->copy(*cpu.stream, bf16, out);
      double worst = 0;
      for (int64_t i = 0; i < n; ++i) worst = std::max<double>(worst, std::abs(out[i] - a.data[i]));
      CHECK(worst <= 1.0 / 512);  // half of the last of 8 bits, of numbers up to 1
      cpu.ops->fill(*cpu.stream, out, 0.5);
      CHECK(out.data == std::vector<float>(n, 0.5f));
    });
  }
  const F32 x = random<float>({7 * 1024}, 4);
  F64 want({7});
  r.ops->sumsq(*r.stream, x.as<double>(), 1024, want);
  for_each_cpu(small, [&](Cpu& cpu) {
    F64 tiles({7});
    cpu.ops->sumsq(*cpu.stream, x, 1024, tiles);
    for (int i = 0; i < 7; ++i) CHECK(tiles[i] == doctest::Approx(want[i]).epsilon(1e-13));
  });
}

namespace {

// What every operation gives for one set of inputs, with so many threads.
struct Results {
  std::vector<std::vector<float>> products, others;
  double loss = 0;
  bool operator==(const Results&) const = default;
};

Results all_operations(int threads) {
  constexpr int64_t B = 3, T = 150, H = 2, C = 80, V = 300;
  Cpu cpu(threads, kernels().front(), small);
  Ops& ops = *cpu.ops;
  Stream& s = *cpu.stream;
  Results r;
  const F32 qkv = random<float>({B * T, 3 * C}, 1), dout = random<float>({B * T, C}, 2),
            gain = random<float>({C}, 3), weight = random<float>({V, C}, 4),
            wide = random<float>({B * T, 4 * C}, 6);
  const auto tokens = random_ids({B, T}, 7, V), targets = random_ids({B * T}, 5, V);
  const auto other = [&](const F32& x) { r.others.push_back(x.data); };

  F32 out({B * T, C}), lse({B, H, T}), dqkv({B * T, 3 * C});
  ops.attention(s, {B, T, H, qkv, out, lse});
  ops.attention_back(s, {B, T, H, qkv, out, lse, dout, dqkv});
  F32 y({B * T, C}), mean({B * T}), rstd({B * T}), dx({B * T, C}), dgain({C}), dbias({C});
  ops.norm(s, {dout, gain, gain, y, mean, rstd});
  ops.norm_back(s, {dout, out, gain, mean, rstd, dx, dgain, dbias});
  for (const F32* x : {&out, &lse, &dqkv, &y, &mean, &rstd, &dx, &dgain, &dbias}) other(*x);
  F32 embedded({B * T, C}), dtable({V, C}), dpositions({T, C});
  ops.embed(s, {tokens, weight, dout, embedded});
  ops.embed_back(s, {tokens, dout, dtable, dpositions});
  for (const F32* x : {&embedded, &dtable, &dpositions}) other(*x);
  F32 wide_bias({4 * C}), sum({B * T, C}), filled({B * T, C});
  add_bias_gradient(ops, s, wide, F32({4 * C, 4 * C}), wide_bias);
  const View parts[] = {out, dout, y, dx};
  ops.sum(s, sum, parts);
  ops.fill(s, filled, 0.3);
  for (const F32* x : {&wide_bias, &sum, &filled}) other(*x);
  constexpr int64_t tile = 40;
  F64 squares({B * T * C / tile}), scalars({update_scalars}, {0.05, 0.25, 0.1, 0.05});
  ops.sumsq(s, out, tile, squares);
  for (double x : squares.data) r.loss += x;
  F32 w = wide.clone(), m({B * T, 4 * C}), v({B * T, 4 * C});
  const F32 gradient = random<float>({B * T, 4 * C}, 9);
  ops.update(s, {.weight_decay = 0.1f}, {w, gradient, m, v}, scalars);
  for (const F32* x : {&w, &m, &v}) other(*x);

  F32 dhead({B * T, C}), dweight({V, C});
  F64 loss({1}), count({1});
  ops.head_loss(s, {dout, weight, targets, loss, count, dhead, dweight});
  r.loss += loss[0];
  r.products = {dhead.data, dweight.data};
  // [rows, k] [k, n], whichever way each lies in memory; 450 rows are cut into several parts.
  const F32 k80 = random<float>({C, 450}, 8), n31 = random<float>({C, 31}, 9);
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      F32 c({450, 31}), more = random<float>({450, 31}, 10), act({450, 31});
      const View a = ta ? k80.view : k80.view.reshape({450, C});
      const View b = tb ? n31.view.reshape({31, C}) : n31.view;
      ops.gemm(s, {.a = a, .b = b, .c = c, .transposed_a = ta, .transposed_b = tb});
      ops.gemm(
          s,
          {.a = a, .b = b, .c = more, .transposed_a = ta, .transposed_b = tb, .accumulate = true});
      ops.gemm(s, {.a = a,
                   .b = b,
                   .c = act,
                   .transposed_a = ta,
                   .transposed_b = tb,
                   .bias = gain.view.slice(0, 31),
                   .act = Activation::gelu});
      for (const F32* x : {&c, &more, &act}) r.products.push_back(x->data);
    }
  }
  // A small weight's gradient, a sum over many rows.
  const F32 x = random<float>({4096, 32}, 11), dy = random<float>({4096, 32}, 12);
  F32 dw({32, 32});
  ops.gemm(s, {.a = x, .b = dy, .c = dw, .transposed_a = true, .accumulate = true});
  r.products.push_back(dw.data);
  return r;
}

}  // namespace

TEST_CASE("cpu: equal inputs give equal bits on any number of threads") {
  const Results one = all_operations(1);
  for (const int threads : {1, 2, 3, 5}) CHECK((all_operations(threads) == one));
}
