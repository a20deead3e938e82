#include "ops/cpu/dnnl.h"

#include <omp.h>

#include <array>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>

namespace trainlaunch {

namespace {

// oneDNN asks OpenMP how many threads there are, at creation and at execution.
class ThreadsOf {
 public:
  explicit ThreadsOf(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~ThreadsOf() { omp_set_num_threads(before_); }

 private:
  int before_;
};

dnnl::memory::desc matrix(int64_t rows, int64_t cols, bool transposed, int64_t stride = 0) {
  using Dims = dnnl::memory::dims;
  if (stride == 0) stride = transposed ? rows : cols;
  return {
      {rows, cols}, dnnl::memory::data_type::f32, transposed ? Dims{1, stride} : Dims{stride, 1}};
}

dnnl::matmul::primitive_desc describe(const Matmul::Shape& s, dnnl::scratchpad_mode mode,
                                      const dnnl::engine& engine) {
  const auto a = matrix(s.m, s.k, s.transposed_a, s.stride_a), b = matrix(s.k, s.n, s.transposed_b),
             c = matrix(s.m, s.n, false);
  const auto bias = s.bias ? matrix(1, s.n, false) : dnnl::memory::desc();
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(mode);
  if (s.accumulate) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attr.set_post_ops(ops);
  }
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul::primitive_desc(engine, a, b, bias, c, attr);
#else
  return dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, bias, c), attr, engine);
#endif
}

// A compiled product and the memory objects that it is called with: only their addresses change
// from call to call, and nothing is allocated.
struct Compiled {
  std::array<dnnl_exec_arg_t, 5> args;
  int arg_count = 0;
  size_t scratch_bytes;
  dnnl::matmul primitive;
  dnnl::memory a, b, bias, c, scratch;

  Compiled(const dnnl::matmul::primitive_desc& pd, const dnnl::engine& engine, bool with_bias)
      : scratch_bytes(pd.scratchpad_desc().get_size()),
        primitive(pd),
        a(add(DNNL_ARG_SRC, pd.src_desc(), engine)),
        b(add(DNNL_ARG_WEIGHTS, pd.weights_desc(), engine)),
        c(add(DNNL_ARG_DST, pd.dst_desc(), engine)) {
    if (with_bias) bias = add(DNNL_ARG_BIAS, pd.bias_desc(), engine);
    if (scratch_bytes > 0) scratch = add(DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc(), engine);
  }
  Compiled(const Compiled&) = delete;

 private:
  dnnl::memory add(int what, const dnnl::memory::desc& desc, const dnnl::engine& engine) {
    dnnl::memory m(desc, engine, nullptr);
    args[arg_count++] = {what, m.get()};
    return m;
  }
};

void plain(const Matmul::Shape& s, const float* a, const float* b, const float* bias, float* c) {
  const int64_t stride_a = s.stride_a > 0 ? s.stride_a : s.transposed_a ? s.m : s.k;
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      double sum = s.accumulate ? c[i * s.n + j] : s.bias ? bias[j] : 0.0f;
      for (int64_t p = 0; p < s.k; ++p) {
        sum += static_cast<double>(s.transposed_a ? a[p * stride_a + i] : a[i * stride_a + p]) *
               static_cast<double>(s.transposed_b ? b[j * s.k + p] : b[p * s.n + j]);
      }
      c[i * s.n + j] = static_cast<float>(sum);
    }
  }
}

}  // namespace

struct Matmul::Impl {
  int threads;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<Shape, Compiled> compiled;

  explicit Impl(int n) : threads(n) {}

  Compiled& get(const Shape& shape, size_t available) {
    const auto found = compiled.find(shape);
    if (found != compiled.end() && found->second.scratch_bytes <= available) return found->second;
    auto pd = describe(shape, dnnl::scratchpad_mode::user, engine);
    if (pd.scratchpad_desc().get_size() > available) {
      pd = describe(shape, dnnl::scratchpad_mode::library, engine);
    }
    compiled.erase(shape);
    return compiled.try_emplace(shape, pd, engine, shape.bias).first->second;
  }

  bool run(const Shape& shape, const float* a, const float* b, const float* bias, float* c,
           std::span<std::byte> scratch) try {
    const ThreadsOf this_many(threads);
    Compiled& product = get(shape, scratch.size());
    product.a.set_data_handle(const_cast<float*>(a));
    product.b.set_data_handle(const_cast<float*>(b));
    if (shape.bias) product.bias.set_data_handle(const_cast<float*>(bias));
    if (product.scratch_bytes > 0) product.scratch.set_data_handle(scratch.data());
    product.c.set_data_handle(c);
    // The C++ execute() takes a map and builds these arguments anew each time.
    return dnnl_primitive_execute(product.primitive.get(), stream.get(), product.arg_count,
                                  product.args.data()) == dnnl_success;
  } catch (const dnnl::error&) {
    return false;
  }
};

Matmul::Matmul(int threads) : impl_(std::make_unique<Impl>(threads)) {}
Matmul::Matmul(Matmul&&) noexcept = default;
Matmul::~Matmul() = default;

size_t Matmul::scratch_bytes(const Shape& shape) const try {
  const ThreadsOf this_many(impl_->threads);
  return describe(shape, dnnl::scratchpad_mode::user, impl_->engine).scratchpad_desc().get_size();
} catch (const dnnl::error&) {
  return 0;
}

void Matmul::run(const Shape& shape, const float* a, const float* b, const float* bias, float* c,
                 std::span<std::byte> scratch) {
  if (shape.m == 0 || shape.n == 0) return;
  // oneDNN 3 takes one row of a transposed matrix for a dense one, whatever its stride.
  const bool lone = shape.m == 1 && shape.transposed_a && shape.stride_a > 1;
  if (shape.k > 0 && !lone && impl_->run(shape, a, b, bias, c, scratch)) return;
  plain(shape, a, b, bias, c);
}

}  // namespace trainlaunch
