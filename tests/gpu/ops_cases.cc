// The CUDA operations against the f64 reference, in f32 and in bf16.
//
// Inputs are in [-1, 1] and the same in both: they are rounded to the type that is tested before
// the reference sees them. What an operation gives may be off by its own arithmetic, in f32, and by
// the rounding of results to bf16. Tolerances are in epsilons of f32, 1.2e-7, and of bf16, 2^-8,
// times (1 + |want|); see ops_cpu_test.cc for the first. Where the operations themselves round
// numbers to bf16 in between, as tensor cores need it, the tolerance is in those.

#include <limits>

#include "tests/gpu/ops_machine.h"

using namespace trainlaunch;
using namespace trainlaunch::testing;

namespace {

struct Reference {
  std::unique_ptr<Ops> ops = make_reference_ops();
  std::unique_ptr<Stream> stream = host_stream();
};

constexpr OpsLimits small = {.sequences = 3, .context = 150, .width = 80, .heads = 2, .vocab = 300};

// Numbers that the machine's type holds.
F64 numbers(const Machine& m, std::initializer_list<int64_t> shape, uint64_t seed,
            double scale = 1.0) {
  F64 t = random<double>(shape, seed, scale);
  if (m.dtype() == DType::bf16)
    for (double& x : t.data) x = float_of(bf16_of(static_cast<float>(x)));
  return t;
}
// The same for what is of the wide type.
F64 wide_numbers(std::initializer_list<int64_t> shape, uint64_t seed, double scale = 1.0) {
  return random<double>(shape, seed, scale);
}

double worst(const F64& got, const F64& want) {
  REQUIRE(got.data.size() == want.data.size());
  double worst = 0;
  for (size_t i = 0; i < got.data.size(); ++i) {
    const double off = std::abs(got.data[i] - want.data[i]) / (1 + std::abs(want.data[i]));
    worst = off <= worst ? worst : off;  // also when off is NaN
  }
  return worst;
}
// A result, and one of the wide type. `halves`: epsilons of bf16, beside the one of the result.
void check_close(Machine& m, View got, const F64& want, double epsilons, double halves = 0) {
  const bool half = m.dtype() == DType::bf16;
  const double tolerance = epsilons * std::numeric_limits<float>::epsilon() +
                           (half ? halves + (got.t == DType::bf16 ? 1 : 0) : 0) / 256;
  CHECK(worst(m.get(got), want) <= tolerance);
}

}  // namespace

TEST_CASE("cuda: products") {
  struct Case {
    int64_t m, n, k;
  };
  const Reference r;
  for (const Case& shape :
       {Case{1, 1, 1}, {1, 48, 80}, {7, 5, 3}, {33, 80, 17}, {64, 64, 64}, {65, 24, 80}}) {
    const int64_t m = shape.m, n = shape.n, k = shape.k;
    for_each_machine(small, [&](Machine& on) {
      const F64 a = numbers(on, {m, k}, 1), b = numbers(on, {k, n}, 3), bias = numbers(on, {n}, 5),
                other = numbers(on, {m, n}, 7, 3.0), start = wide_numbers({m, n}, 6);
      F64 at({k, m}), bt({n, k});
      for (int64_t i = 0; i < m; ++i)
        for (int64_t q = 0; q < k; ++q) at[q * m + i] = a.data[i * k + q];
      for (int64_t q = 0; q < k; ++q)
        for (int64_t j = 0; j < n; ++j) bt[j * k + q] = b.data[q * n + j];
      const View ga = on.put(a), gat = on.put(at), gb = on.put(b), gbt = on.put(bt),
                 gbias = on.put(bias), gother = on.put(other);
      // plain, accumulated, bias, GELU, GELU and pre, residual, back, plain to the wide type
      for (const int kind : {0, 1, 2, 3, 4, 5, 6, 7}) {
        const auto describe = [&](View av, View bv, View c, View biasv, View pre, View third) {
          return Gemm{.a = av,
                      .b = bv,
                      .c = c,
                      .accumulate = kind == 1,
                      .bias = kind >= 2 && kind <= 5 ? biasv : View(),
                      .act = kind == 3 || kind == 4 ? Activation::gelu : Activation::none,
                      .pre = kind == 4 ? pre : View(),
                      .add = kind == 5 ? third : View(),
                      .back = kind == 6 ? third : View()};
        };
        F64 want = start.clone(), want_pre({m, n});
        r.ops->gemm(*r.stream, describe(a, b, want, bias, want_pre, other));
        for (const bool ta : {false, true}) {
          for (const bool tb : {false, true}) {
            INFO("m ", m, " n ", n, " k ", k, " ta ", ta, " tb ", tb, " kind ", kind);
            const bool wide = kind == 1 || kind == 7;
            const View c = wide ? on.put_wide(start) : on.blank({m, n}), pre = on.blank({m, n});
            Gemm g = describe(ta ? gat : ga, tb ? gbt : gb, c, gbias, pre, gother);
            g.transposed_a = ta;
            g.transposed_b = tb;
            on.ops().gemm(on.stream(), g);
            check_close(on, c, want, k + 8.0, kind >= 2 && !wide ? 3 : 0);
            if (kind == 4) check_close(on, pre, want_pre, k + 8.0, 1);
          }
        }
      }
    });
  }
}

TEST_CASE("cuda: a product over nothing is its bias") {
  for_each_machine(small, [](Machine& on) {
    const F64 bias({3}, {1, 2, 3});
    const View c = on.blank({2, 3});
    on.ops().gemm(on.stream(), {.a = View(nullptr, on.dtype(), {2, 0}),
                                .b = View(nullptr, on.dtype(), {0, 3}),
                                .c = c,
                                .bias = on.put(bias)});
    CHECK(on.get(c).data == std::vector<double>{1, 2, 3, 1, 2, 3});
  });
}

TEST_CASE("cuda: bias and GELU backwards") {
  const Reference r;
  for (const auto& shape :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {50, 67}, {64, 8}, {450, 320}}) {
    const int64_t rows = shape.first, n = shape.second;
    INFO("rows ", rows, " n ", n);
    for_each_machine(small, [&](Machine& on) {
      const F64 pre = numbers(on, {rows, n}, 1, 6.0), dy = numbers(on, {rows, n}, 2),
                start = wide_numbers({n}, 3);
      F64 want({rows, n}), want_bias = start.clone();
      const F64 one = unit_matrix(n);
      through_gelu(*r.ops, *r.stream, pre, dy, one, want);
      add_bias_gradient(*r.ops, *r.stream, dy, F64({n, n}), want_bias);
      const View gpre = on.put(pre), gdy = on.put(dy), dx = on.blank({rows, n}),
                 dbias = on.put_wide(start);
      through_gelu(on.ops(), on.stream(), gpre, gdy, on.put(one), dx);
      check_close(on, dx, want, 16);
      add_bias_gradient(on.ops(), on.stream(), gdy, on.put_wide(F64({n, n})), dbias);
      check_close(on, dbias, want_bias, rows);
    });
  }
}

TEST_CASE("cuda: embedding") {
  const Reference r;
  for (const int64_t C : {1, 80, 131}) {
    constexpr int64_t B = 3, T = 100, V = 11;  // few tokens: many rows add to the same one
    INFO("C ", C);
    for_each_machine({B, T, C, 1, V}, [&](Machine& on) {
      const auto tokens = random_ids({B, T}, 1, V);
      const F64 table = numbers(on, {V, C}, 2), positions = numbers(on, {T + 1, C}, 3),
                dout = numbers(on, {B * T, C}, 4), start = wide_numbers({V, C}, 5),
                start_positions = wide_numbers({T + 1, C}, 6);
      F64 want({B * T, C}), want_table = start.clone(), want_positions = start_positions.clone();
      r.ops->embed(*r.stream, {tokens, table, positions, want});
      r.ops->embed_back(*r.stream, {tokens, dout, want_table, want_positions});
      const View gtokens = on.put(tokens), out = on.blank({B * T, C}), dtable = on.put_wide(start),
                 dpositions = on.put_wide(start_positions);
      on.ops().embed(on.stream(), {gtokens, on.put(table), on.put(positions), out});
      on.ops().embed_back(on.stream(), {gtokens, on.put(dout), dtable, dpositions});
      check_close(on, out, want, 1);
      check_close(on, dtable, want_table, B * T);
      check_close(on, dpositions, want_positions, B);
    });
  }
}

TEST_CASE("cuda: layer norm") {
  const Reference r;
  for (const auto& shape : {std::pair<int64_t, int64_t>{1, 1}, {1, 80}, {37, 13}, {200, 264}}) {
    const int64_t rows = shape.first, C = shape.second;
    INFO("rows ", rows, " C ", C);
    for_each_machine({1, rows, C, 1, 10}, [&](Machine& on) {
      const F64 x = numbers(on, {rows, C}, 1), gain = numbers(on, {C}, 2),
                bias = numbers(on, {C}, 3), dy = numbers(on, {rows, C}, 4),
                start = numbers(on, {rows, C}, 5), start_gain = wide_numbers({C}, 6);
      F64 y64({rows, C}), mean64({rows}), rstd64({rows});
      F64 dx64 = start.clone(), dgain64 = start_gain.clone(), dbias64 = start_gain.clone();
      r.ops->norm(*r.stream, {x, gain, bias, y64, mean64, rstd64});
      r.ops->norm_back(*r.stream, {x, dy, gain, mean64, rstd64, dx64, dgain64, dbias64});
      const View gx = on.put(x), ggain = on.put(gain), y = on.blank({rows, C}),
                 mean = on.blank_wide({rows}), rstd = on.blank_wide({rows}), dx = on.put(start),
                 dgain = on.put_wide(start_gain), dbias = on.put_wide(start_gain);
      on.ops().norm(on.stream(), {gx, ggain, on.put(bias), y, mean, rstd});
      on.ops().norm_back(on.stream(), {gx, on.put(dy), ggain, mean, rstd, dx, dgain, dbias});
      check_close(on, mean, mean64, 8);
      check_close(on, rstd, rstd64, 16);
      check_close(on, y, y64, 16);
      check_close(on, dx, dx64, 32);
      check_close(on, dgain, dgain64, rows + 16.0);
      check_close(on, dbias, dbias64, rows);
    });
  }
}

TEST_CASE("cuda: attention") {
  struct Case {
    int64_t B, T, H, width;  // of a head
  };
  const Reference r;
  for (const Case& shape : {Case{1, 1, 1, 1},
                            {2, 5, 3, 3},
                            {1, 63, 2, 16},
                            {2, 64, 1, 64},
                            {1, 65, 2, 20},
                            {1, 150, 2, 40},
                            {1, 130, 1, 128},
                            {1, 70, 2, 72},
                            {1, 66, 1, 160}}) {
    const int64_t B = shape.B, T = shape.T, H = shape.H, width = shape.width;
    INFO("B ", B, " T ", T, " H ", H, " width ", width);
    const int64_t C = H * width;
    for_each_machine({B, T, C, H, 10}, [&](Machine& on) {
      const F64 qkv = numbers(on, {B * T, 3 * C}, 1, 2.0), dout = numbers(on, {B * T, C}, 2);
      F64 out64({B * T, C}), lse64({B, H, T}), dqkv64({B * T, 3 * C});
      r.ops->attention(*r.stream, {B, T, H, qkv, out64, lse64});
      r.ops->attention_back(*r.stream, {B, T, H, qkv, out64, lse64, dout, dqkv64});
      const View gqkv = on.put(qkv), gdout = on.put(dout), out = on.blank({B * T, C}),
                 lse = on.blank_wide({B, H, T}), dqkv = on.blank({B * T, 3 * C});
      on.ops().attention(on.stream(), {B, T, H, gqkv, out, lse});
      on.ops().attention_back(on.stream(), {B, T, H, gqkv, out, lse, gdout, dqkv});
      check_close(on, lse, lse64, width + 8.0);
      // Weights are rounded to bf16 before they are used; of their gradients' terms, each.
      check_close(on, out, out64, width + 16.0, 1);
      check_close(on, dqkv, dqkv64, 4.0 * width + T, 4);

      for (const int64_t first : {T / 2, T - 1}) {
        INFO("first ", first);
        const int64_t rows = B * (T - first);
        F64 part64({rows, C}), part_lse64({B, H, T - first});
        r.ops->attention(*r.stream, {B, T, H, qkv, part64, part_lse64, first});
        const View part = on.blank({rows, C}), unasked = on.blank({rows, C}),
                   part_lse = on.blank_wide({B, H, T - first});
        on.ops().attention(on.stream(), {B, T, H, gqkv, part, part_lse, first});
        on.ops().attention(on.stream(), {B, T, H, gqkv, unasked, {}, first});
        check_close(on, part, part64, width + 16.0, 1);
        check_close(on, part_lse, part_lse64, width + 8.0);
        CHECK(on.get(unasked).data == on.get(part).data);
      }
    });
  }
}

TEST_CASE("cuda: attention does not look ahead") {
  constexpr int64_t T = 130, H = 2, C = 32, changed = 70;
  for_each_machine({1, T, C, H, 10}, [&](Machine& on) {
    const F64 qkv = numbers(on, {T, 3 * C}, 1);
    F64 other = qkv.clone();
    for (int64_t c = 0; c < 3 * C; ++c) other[changed * 3 * C + c] = 5;
    const View before = on.blank({T, C}), after = on.blank({T, C});
    on.ops().attention(on.stream(), {1, T, H, on.put(qkv), before, {}});
    on.ops().attention(on.stream(), {1, T, H, on.put(other), after, {}});
    const F64 b = on.get(before), a = on.get(after);
    for (int64_t i = 0; i < changed * C; ++i) REQUIRE(b.data[i] == a.data[i]);
    CHECK(b.data[changed * C] != a.data[changed * C]);
  });
}

TEST_CASE("cuda: large scores neither overflow nor vanish") {
  constexpr int64_t T = 70, C = 16;
  const Reference r;
  for_each_machine({1, T, C, 1, 10}, [&](Machine& on) {
    const F64 qkv = numbers(on, {T, 3 * C}, 1, 100.0);
    F64 out64({T, C}), lse64({1, 1, T});
    r.ops->attention(*r.stream, {1, T, 1, qkv, out64, lse64});
    const View out = on.blank({T, C}), lse = on.blank_wide({1, 1, T});
    on.ops().attention(on.stream(), {1, T, 1, on.put(qkv), out, lse});
    check_close(on, lse, lse64, 16);
    // A score near 1e4 is off by 1e4 epsilons, and so is what its exponential is multiplied with.
    check_close(on, out, out64, 4e4, 1);
  });
}

TEST_CASE("cuda: head and loss") {
  struct Case {
    int64_t rows, C, V;
  };
  const Reference r;
  for (const Case& shape : {Case{1, 4, 2}, {5, 80, 256}, {70, 33, 300}, {9, 8, 50257}}) {
    const int64_t rows = shape.rows, C = shape.C, V = shape.V;
    INFO("rows ", rows, " C ", C, " V ", V);
    for_each_machine({1, rows, C, 1, V}, [&](Machine& on) {
      const F64 x = numbers(on, {rows, C}, 1), weight = numbers(on, {V, C}, 2),
                start = wide_numbers({V, C}, 3);
      auto targets = random_ids({rows}, 4, V);
      for (int64_t i = 1; i < rows; i += 5) targets[i] = -1;
      F64 loss64({1}, {1.0}), count64({1}, {2.0}), dx64({rows, C}), dweight64 = start.clone();
      r.ops->head_loss(*r.stream, {x, weight, targets, loss64, count64, dx64, dweight64});
      const View gx = on.put(x), gweight = on.put(weight), gtargets = on.put(targets),
                 loss = on.put(F64({1}, {1.0}), DType::f64),
                 count = on.put(F64({1}, {2.0}), DType::f64),
                 only = on.put(F64({1}, {1.0}), DType::f64),
                 again = on.put(F64({1}, {2.0}), DType::f64), dx = on.blank({rows, C}),
                 dweight = on.put_wide(start);
      on.ops().head_loss(on.stream(), {gx, gweight, gtargets, loss, count, dx, dweight});
      // In bf16 the logits are rounded, and are near 4 here at most; so is their gradient, below 1.
      const bool half = on.dtype() == DType::bf16;
      CHECK(on.get(count)[0] == count64[0]);
      CHECK(on.get(loss)[0] ==
            doctest::Approx(loss64[0]).epsilon((C + 16) * 1.2e-7 + (half ? 4.0 / 256 : 0)));
      check_close(on, dx, dx64, C + 64.0, 4);
      check_close(on, dweight, dweight64, rows + C, 4);
      const View afresh = on.put_wide(F64({V, C}, std::vector<double>(V * C, NAN)));
      on.ops().head_loss(on.stream(), {gx, gweight, gtargets, on.put(F64({1}), DType::f64),
                                       on.put(F64({1}), DType::f64), dx, afresh, false});
      F64 afresh64 = dweight64.clone();
      for (int64_t i = 0; i < V * C; ++i) afresh64[i] -= start.data[i];
      check_close(on, afresh, afresh64, rows + C, 4);
      on.ops().head_loss(on.stream(), {gx, gweight, gtargets, only, again});
      CHECK(on.get(only)[0] == on.get(loss)[0]);
      CHECK(on.get(again)[0] == on.get(count)[0]);
    });
  }
}

TEST_CASE("cuda: a NaN reaches the loss") {
  for_each_machine({1, 3, 2, 1, 20}, [](Machine& on) {
    F64 x = numbers(on, {3, 2}, 1);
    x[2] = NAN;
    const View loss = on.put(F64({1}), DType::f64), count = on.put(F64({1}), DType::f64);
    on.ops().head_loss(on.stream(), {on.put(x), on.put(numbers(on, {20, 2}, 2)),
                                     on.put(Tensor<int32_t>({3}, {1, 2, 3})), loss, count});
    CHECK(std::isnan(on.get(loss)[0]));
  });
}

TEST_CASE("cuda: AdamW") {
  const Reference r;
  for (const int64_t n : {int64_t{1}, int64_t{3003}}) {
    const F64 w = wide_numbers({n}, 1), g = wide_numbers({n}, 2);
    F64 scalars({update_scalars}), w64 = w.clone(), m64({n}), v64({n});
    scalars[learning_rate] = 0.05;
    scalars[grad_scale] = 0.25;
    const Rule rule{.weight_decay = 0.1f};
    const auto at_step = [&](int step) {
      scalars[correction1] = 1 - std::pow(0.9, step);
      scalars[correction2] = 1 - std::pow(0.95, step);
      scalars[update_step] = step;
    };
    for (int step = 1; step <= 3; ++step) {
      at_step(step);
      r.ops->update(*r.stream, rule, {w64, g, m64, v64}, scalars);
    }
    for (const bool stochastic : {false, true}) {
      for_each_machine(small, [&](Machine& on) {
        const View weight = on.put_wide(w), grad = on.put_wide(g), m = on.put_wide(F64({n})),
                   v = on.put_wide(F64({n})), copy = on.blank({n}, DType::bf16);
        constexpr uint64_t seed = 77, element = 5;
        Rule with_copy = rule;
        with_copy.stochastic = stochastic;
        with_copy.seed = seed;
        for (int step = 1; step <= 3; ++step) {
          at_step(step);
          on.ops().update(on.stream(), with_copy, {weight, grad, m, v, copy, element},
                          on.put(scalars, DType::f64));
        }
        check_close(on, weight, w64, 16);
        check_close(on, m, m64, 8);
        check_close(on, v, v64, 8);
        const F64 wide = on.get(weight), half = on.get(copy);
        int64_t wrong = 0;
        for (int64_t i = 0; i < n; ++i) {
          const float x = static_cast<float>(wide.data[i]);
          const uint16_t want =
              stochastic ? rounded_bf16(x, rounding_bits(seed, 3, element + i)) : bf16_of(x);
          wrong += static_cast<float>(half.data[i]) != float_of(want);
        }
        CHECK(wrong == 0);
      });
    }
  }
}

TEST_CASE("cuda: sums, squares, copies, fills") {
  for (const int64_t n : {int64_t{1}, int64_t{1023}, int64_t{4096}}) {
    INFO("n ", n);
    for_each_machine(small, [&](Machine& on) {
      const F64 a = wide_numbers({n}, 1), b = wide_numbers({n}, 2), c = wide_numbers({n}, 3);
      const View ga = on.put_wide(a), gb = on.put_wide(b), gc = on.put_wide(c),
                 out = on.blank_wide({n});
      // The same chain of roundings, so the same bits.
      F64 want({n});
      for (int64_t i = 0; i < n; ++i)
        want[i] = static_cast<float>(a.data[i]) + static_cast<float>(b.data[i]) +
                  static_cast<float>(c.data[i]);
      const View parts[] = {ga, gb, gc};
      on.ops().sum(on.stream(), out, parts);
      CHECK(on.get(out).data == want.data);
      on.ops().sum(on.stream(), gc, parts);
      CHECK(on.get(gc).data == want.data);

      for (const DType from : {DType::f32, DType::f64, DType::bf16}) {
        const F64 source = on.get(on.put(a, from));
        for (const DType to : {DType::f32, DType::f64, DType::bf16}) {
          F64 rounded({n});
          std::vector<std::byte> memory(n * bytes_of(to));
          const View here(memory.data(), to, {n});
          convert(source, here, 0, n);
          convert(here, rounded, 0, n);
          const View there = on.blank({n}, to);
          on.ops().copy(on.stream(), on.put(a, from), there);
          CHECK(on.get(there).data == rounded.data);
        }
      }
      for (const DType t : {DType::f32, DType::f64, DType::bf16}) {
        const View filled = on.blank({n}, t);
        on.ops().fill(on.stream(), filled, -0.75);
        CHECK(on.get(filled).data == std::vector<double>(n, -0.75));
        on.ops().fill(on.stream(), filled, 0);
        CHECK(on.get(filled).data == std::vector<double>(n, 0.0));
      }
    });
  }
  for (const int64_t tile : {int64_t{1}, int64_t{7}, int64_t{1024}}) {
    for_each_machine(small, [&](Machine& on) {
      constexpr int64_t tiles = 5;
      const F64 x = wide_numbers({tiles * tile}, 1);
      const View out = on.blank({tiles}, DType::f64);
      on.ops().sumsq(on.stream(), on.put_wide(x), tile, out);
      const F64 got = on.get(out);
      for (int64_t i = 0; i < tiles; ++i) {
        double want = 0;
        for (int64_t j = 0; j < tile; ++j) want += x.data[i * tile + j] * x.data[i * tile + j];
        CHECK(got.data[i] == doctest::Approx(want).epsilon(1e-13));
      }
    });
  }
}

TEST_CASE("cuda: equal inputs give equal bits") {
  constexpr int64_t rows = 130, C = 80, V = 11;
  for_each_machine({1, rows, C, 2, V}, [&](Machine& on) {
    const View x = on.put(numbers(on, {rows, C}, 1)), dy = on.put(numbers(on, {rows, C}, 2)),
               gain = on.put(numbers(on, {C}, 3)), qkv = on.put(numbers(on, {rows, 3 * C}, 4)),
               tokens = on.put(random_ids({1, rows}, 5, V));
    const auto results = [&] {
      const View y = on.blank({rows, C}), mean = on.blank_wide({rows}),
                 rstd = on.blank_wide({rows}), dx = on.put(F64({rows, C})),
                 dgain = on.put_wide(F64({C})), dbias = on.put_wide(F64({C})),
                 out = on.blank({rows, C}), lse = on.blank_wide({1, 2, rows}),
                 dqkv = on.blank({rows, 3 * C}), dtable = on.put_wide(F64({V, C})),
                 dpositions = on.put_wide(F64({rows, C}));
      on.ops().norm(on.stream(), {x, gain, gain, y, mean, rstd});
      on.ops().norm_back(on.stream(), {x, dy, gain, mean, rstd, dx, dgain, dbias});
      on.ops().attention(on.stream(), {1, rows, 2, qkv, out, lse});
      on.ops().attention_back(on.stream(), {1, rows, 2, qkv, out, lse, dy, dqkv});
      on.ops().embed_back(on.stream(), {tokens, dy, dtable, dpositions});
      std::vector<std::vector<double>> all;
      for (const View& v : {y, dx, dgain, dbias, out, dqkv, dtable, dpositions})
        all.push_back(on.get(v).data);
      return all;
    };
    CHECK((results() == results()));
  });
}
