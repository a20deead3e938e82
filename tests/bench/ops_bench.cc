// How fast the CPU operations are on this machine: `make bench-ops`. Prints, asserts nothing.
//
//   ops_bench [threads [f32 | bf16 [roof]]]
//
// roof: of the character model, the time of a step's matrix products alone, each by the fastest of
// what is here; prints tokens per second.

#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "ops/cpu/cpu_ops.h"

using namespace trainlaunch;

namespace {

// Best of several repetitions, in seconds.
double best_time(const std::function<void()>& f) {
  f();
  double best = 1e30;
  const Deadline end = Deadline::in(Seconds(0.1));
  for (int i = 0; i < 3 || !end.over(); ++i) {
    const auto begin = Clock::now();
    f();
    best = std::min(best, Seconds(Clock::now() - begin).count());
  }
  return best;
}

struct Shape {
  const char* what;
  int64_t B, T, layers, heads, C, V;
};

// The parts of a GPT-2 step, each on tensors of its own.
class Bench {
 public:
  Bench(Ops& ops, int threads, const Shape& shape)
      : ops_(ops),
        threads_(threads),
        s_(shape),
        device_(make_host_device()),
        stream_(*device_->stream()) {
    arena_.emplace(*Arena::fitting(*device_, [this](Arena& a) { take(a); }));
    ops_.use_scratch(scratch_);
    for (int64_t i = 0; i < rows(); ++i) {
      tokens_.as<int32_t>()[i] = targets_.as<int32_t>()[i] = static_cast<int32_t>(i % s_.V);
    }
    for (View v : {x_, y_, wide_, qkv_, weight_, table_}) {
      for (int64_t i = 0; i < v.size(); ++i) {
        float x = static_cast<float>(unit(philox(1, RandomStream::init, i, 0)[0]) - 0.5);
        ops_.copy(*stream_, View(&x, DType::f32, {1}), v.slice(i, 1));
      }
    }
    for (int i = 0; i < update_scalars; ++i) scalars_.as<double>()[i] = 1e-3;
  }

  void print() {
    std::printf("\n%s: %ld x %ld tokens, %ld layers, width %ld, %ld heads, vocabulary %ld\n",
                s_.what, s_.B, s_.T, s_.layers, s_.C, s_.heads, s_.V);
    const int64_t C = s_.C;
    print_products("attention in", C, 3 * C);
    print_products("attention out", C, C);
    print_products("up", C, 4 * C);
    print_products("down", 4 * C, C);
    print_one("norm", [&] { norm(); });
    print_one("norm, backward", [&] { norm_back(); });
    print_one("attention", [&] { attention(); });
    print_one("attention, backward", [&] { attention_back(); });
    print_one("embedding", [&] { embed(); });
    print_one("embedding, backward", [&] { embed_back(); });
    print_one("head and loss", [&] { head(); });
    print_one("AdamW, whole model", [&] { update(); });
    const double t = best_time([&] { step(); });
    std::printf("  %-22s %10.3f ms  %8.0f tokens/s\n", "a step like a model's", t * 1e3,
                rows() / t);
  }

  // Seconds of the products of a step, each at its best, and those of attention, without what is
  // masked, as fast as the others together.
  double products() {
    double layer = 0;
    const int64_t C = s_.C;
    for (const auto& [in, out] : {std::pair(C, 3 * C), {C, C}, {C, 4 * C}, {4 * C, C}}) {
      layer += best_product({.m = rows(), .n = out, .k = in});
      layer += best_product({.m = rows(), .n = in, .k = out, .transposed_b = true});
      layer += best_product({.m = in, .n = out, .k = rows(), .transposed_a = true});
    }
    const double head = best_product({.m = rows(), .n = s_.V, .k = C, .transposed_b = true}) +
                        best_product({.m = rows(), .n = C, .k = s_.V}) +
                        best_product({.m = s_.V, .n = C, .k = rows(), .transposed_a = true});
    const double seconds = static_cast<double>(s_.layers) * layer + head;
    // Of a token, in multiplications and additions of each pass: 12 C^2 a layer and C V, and C T.
    const auto maps = static_cast<double>(s_.layers * 12 * C + s_.V);
    return seconds * (1 + static_cast<double>(s_.layers * s_.T) / maps);
  }
  double tokens_per_second_of_products() { return static_cast<double>(rows()) / products(); }

  void step() {
    embed();
    for (int64_t i = 0; i < s_.layers; ++i) layer();
    head();
    for (int64_t i = 0; i < s_.layers; ++i) layer_back();
    embed_back();
    update();
  }

 private:
  int64_t rows() const { return s_.B * s_.T; }
  int64_t parameters() const { return s_.layers * 12 * s_.C * s_.C + s_.V * s_.C; }
  int64_t slot() const { return std::min(parameters(), int64_t{8} << 20); }

  void take(Arena& arena) {
    const int64_t C = s_.C, R = rows();
    const auto f32 = [&](View& v, std::initializer_list<int64_t> shape) {
      v = arena.take("", DType::f32, shape);
    };
    const auto some = [&](View& v, std::initializer_list<int64_t> shape) {
      v = arena.take("", ops_.dtype(), shape);
    };
    tokens_ = arena.take("", DType::i32, {s_.B, s_.T});
    targets_ = arena.take("", DType::i32, {R});
    some(x_, {R, C}), some(y_, {R, C}), some(qkv_, {R, 3 * C}), some(dqkv_, {R, 3 * C});
    some(wide_, {R, 4 * C}), some(wide2_, {R, 4 * C}), f32(lse_, {s_.B, s_.heads, s_.T});
    f32(mean_, {R}), f32(rstd_, {R}), some(gain_, {C}), some(bias_, {4 * C});
    f32(dgain_, {C}), f32(dbias_, {4 * C});
    some(weight_, {4 * C, C}), f32(dweight_, {4 * C, C}), some(table_, {s_.V, C});
    f32(dtable_, {s_.V, C}), some(positions_, {s_.T, C}), f32(dpositions_, {s_.T, C});
    for (View& v : slots_) f32(v, {slot()});
    if (ops_.dtype() != ops_.wide()) some(copy_, {slot()});
    loss_ = arena.take("", DType::f64, {1});
    count_ = arena.take("", DType::f64, {1});
    scalars_ = arena.take("", DType::f64, {update_scalars});
    const OpsLimits limits{s_.B, s_.T, C, s_.heads, s_.V};
    scratch_ = arena.take("", DType::u8, {static_cast<int64_t>(ops_.scratch_bytes(limits))});
  }

  // By our kernels and by oneDNN, to and from memory that is larger than any operand.
  double best_product(Matmul::Shape shape) {
    shape.type = ops_.dtype();
    shape.result = shape.transposed_a ? DType::f32 : ops_.dtype();
    const View c = shape.transposed_a ? dweight_ : wide2_;
    const View a =
        shape.transposed_a ? matrix(wide_, shape.k, shape.m) : matrix(wide_, shape.m, shape.k);
    const View from = shape.transposed_a ? wide2_ : weight_;
    const View b =
        shape.transposed_b ? matrix(from, shape.n, shape.k) : matrix(from, shape.k, shape.n);
    const double ours = best_time([&] {
      ops_.gemm(*stream_, {.a = a,
                           .b = b,
                           .c = matrix(c, shape.m, shape.n),
                           .transposed_a = shape.transposed_a,
                           .transposed_b = shape.transposed_b});
    });
    Matmul library(threads_);
    std::vector<std::byte> scratch(library.scratch_bytes(shape));
    return std::min(ours, best_time([&] { library.run(shape, a.p, b.p, c.p, scratch); }));
  }

  View matrix(View memory, int64_t r, int64_t c) const { return View(memory.p, memory.t, {r, c}); }
  void forward(View x, View y, int64_t in, int64_t out, View add = {}) {
    ops_.gemm(*stream_, {.a = matrix(x, rows(), in),
                         .b = matrix(weight_, in, out),
                         .c = matrix(y, rows(), out),
                         .bias = bias_.slice(0, out),
                         .add = add});
  }
  void forward_gelu(View x, View y, View pre, int64_t in, int64_t out) {
    ops_.gemm(*stream_, {.a = matrix(x, rows(), in),
                         .b = matrix(weight_, in, out),
                         .c = matrix(y, rows(), out),
                         .bias = bias_.slice(0, out),
                         .act = Activation::gelu,
                         .pre = pre});
  }
  void back_input(View dy, View dx, int64_t in, int64_t out, View pre = {}) {
    ops_.gemm(*stream_, {.a = matrix(dy, rows(), out),
                         .b = matrix(weight_, in, out),
                         .c = matrix(dx, rows(), in),
                         .transposed_b = true,
                         .back = pre});
  }
  void back_weight(View x, View dy, int64_t in, int64_t out) {
    ops_.gemm(*stream_, {.a = matrix(x, rows(), in),
                         .b = matrix(dy, rows(), out),
                         .c = matrix(dweight_, in, out),
                         .transposed_a = true,
                         .accumulate = true,
                         .dbias = dbias_.slice(0, out)});
  }

  void norm() { ops_.norm(*stream_, {x_, gain_, bias_.slice(0, s_.C), y_, mean_, rstd_}); }
  void norm_back() {
    ops_.norm_back(*stream_, {x_, y_, gain_, mean_, rstd_, x_, dgain_, dbias_.slice(0, s_.C)});
  }
  void attention() { ops_.attention(*stream_, {s_.B, s_.T, s_.heads, qkv_, y_, lse_}); }
  void attention_back() {
    ops_.attention_back(*stream_, {s_.B, s_.T, s_.heads, qkv_, y_, lse_, x_, dqkv_});
  }
  void embed() { ops_.embed(*stream_, {tokens_, table_, positions_, x_}); }
  void embed_back() { ops_.embed_back(*stream_, {tokens_, x_, dtable_, dpositions_}); }
  void head() { ops_.head_loss(*stream_, {x_, table_, targets_, loss_, count_, y_, dtable_}); }
  void
  update() {  // a large model's parameters again and again in the same memory, beyond any cache
    for (int64_t done = 0; done < parameters(); done += slot()) {
      ops_.update(*stream_, Rule{}, {slots_[0], slots_[1], slots_[2], slots_[3], copy_}, scalars_);
    }
  }
  void layer() {
    norm();
    forward(y_, qkv_, s_.C, 3 * s_.C);
    attention();
    forward(y_, dqkv_, s_.C, s_.C, x_);
    norm();
    forward_gelu(y_, wide_, wide2_, s_.C, 4 * s_.C);
    forward(wide_, dqkv_, 4 * s_.C, s_.C, x_);
  }
  void layer_back() {
    back_input(x_, wide2_, 4 * s_.C, s_.C, wide_);
    back_weight(wide_, x_, 4 * s_.C, s_.C);
    back_input(wide2_, y_, s_.C, 4 * s_.C);
    back_weight(y_, wide2_, s_.C, 4 * s_.C);
    norm_back();
    back_input(x_, y_, s_.C, s_.C);
    back_weight(y_, x_, s_.C, s_.C);
    attention_back();
    back_input(dqkv_, y_, s_.C, 3 * s_.C);
    back_weight(y_, dqkv_, s_.C, 3 * s_.C);
    norm_back();
  }

  void print_one(const char* what, const std::function<void()>& f) {
    std::printf("  %-22s %10.3f ms\n", what, best_time(f) * 1e3);
  }
  void print_products(const char* what, int64_t in, int64_t out) {
    const double flops = 2.0 * rows() * in * out;
    const auto line = [&](const char* pass, const std::function<void()>& f) {
      const double t = best_time(f);
      std::printf("  %-14s %-7s %10.3f ms  %8.1f GFLOP/s\n", what, pass, t * 1e3, flops / t * 1e-9);
    };
    line("y", [&] { forward(wide_, wide2_, in, out); });
    line("dx", [&] { back_input(wide_, wide2_, in, out); });
    line("dw, db", [&] { back_weight(wide_, wide2_, in, out); });
  }

  Ops& ops_;
  int threads_;
  Shape s_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::optional<Arena> arena_;
  View tokens_, targets_, x_, y_, qkv_, dqkv_, wide_, wide2_, lse_, mean_, rstd_, gain_, bias_,
      weight_, dweight_, table_, dtable_, positions_, dpositions_, dgain_, dbias_, slots_[4], copy_,
      loss_, count_, scalars_, scratch_;
};

}  // namespace

int main(int argc, char** argv) {
  const int asked = argc > 1 ? std::atoi(argv[1]) : 0;
  const int threads = asked > 0 ? asked : omp_get_max_threads();
  const DType dtype = argc > 2 && std::strcmp(argv[2], "bf16") == 0 ? DType::bf16 : DType::f32;
  const Shape small{"small", 4, 64, 4, 4, 128, 256},
      character{"character model", 8, 256, 6, 6, 384, 256},
      gpt2{"GPT-2 124M", 4, 64, 12, 12, 768, 50257};
  if (argc > 3) {
    auto ops = make_cpu_ops(threads, SameBits::same_threads, dtype);
    std::printf("%.0f\n", Bench(*ops, threads, character).tokens_per_second_of_products());
    return 0;
  }
  for (const Kernels& k : kernels()) {
    std::printf("\n== %s kernels, %s\n", k.name, name_of(dtype));
    for (const Shape& shape : {small, character, gpt2}) {
      auto ops = make_cpu_ops(threads, k, dtype);
      Bench(*ops, threads, shape).print();
    }
  }
  return 0;
}
