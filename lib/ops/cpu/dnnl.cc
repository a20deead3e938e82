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

dnnl::memory::desc matrix(int64_t rows, int64_t cols, bool transposed, DType type) {
  using Dims = dnnl::memory::dims;
  using Type = dnnl::memory::data_type;
  return {{rows, cols},
          type == DType::bf16 ? Type::bf16 : Type::f32,
          transposed ? Dims{1, rows} : Dims{cols, 1}};
}

dnnl::matmul::primitive_desc describe(const Matmul::Shape& s, dnnl::scratchpad_mode mode,
                                      const dnnl::engine& engine) {
  const auto a = matrix(s.m, s.k, s.transposed_a, s.type);
  const auto b = matrix(s.k, s.n, s.transposed_b, s.type);
  const auto c = matrix(s.m, s.n, false, s.result);
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(mode);
  if (s.accumulate) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attr.set_post_ops(ops);
  }
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul::primitive_desc(engine, a, b, c, attr);
#else
  return dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), attr, engine);
#endif
}

// A compiled product and the memory objects that it is called with: only their addresses change
// from call to call, and nothing is allocated.
struct Compiled {
  std::array<dnnl_exec_arg_t, 4> args;
  int arg_count = 0;
  size_t scratch_bytes;
  dnnl::matmul primitive;
  dnnl::memory a, b, c, scratch;

  Compiled(const dnnl::matmul::primitive_desc& pd, const dnnl::engine& engine)
      : scratch_bytes(pd.scratchpad_desc().get_size()),
        primitive(pd),
        a(add(DNNL_ARG_SRC, pd.src_desc(), engine)),
        b(add(DNNL_ARG_WEIGHTS, pd.weights_desc(), engine)),
        c(add(DNNL_ARG_DST, pd.dst_desc(), engine)) {
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
    return compiled.try_emplace(shape, pd, engine).first->second;
  }

  bool run(const Shape& shape, const void* a, const void* b, void* c,
           std::span<std::byte> scratch) try {
    const ThreadsOf this_many(threads);
    Compiled& product = get(shape, scratch.size());
    product.a.set_data_handle(const_cast<void*>(a));
    product.b.set_data_handle(const_cast<void*>(b));
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

bool Matmul::run(const Shape& shape, const void* a, const void* b, void* c,
                 std::span<std::byte> scratch) {
  if (shape.m == 0 || shape.n == 0) return true;
  return shape.k > 0 && impl_->run(shape, a, b, c, scratch);
}

bool Matmul::has_fast_bf16() {
#if defined(__x86_64__)
  const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  if (isa == dnnl::cpu_isa::avx512_core_amx) return true;
  return isa == dnnl::cpu_isa::avx512_core_bf16 && __builtin_cpu_is("amd");
#else
  return false;
#endif
}

}  // namespace trainlaunch
