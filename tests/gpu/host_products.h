// Products on the host, in place of cuBLASLt: f32 sums of f32 or bf16 numbers.
#pragma once

#include <cmath>

#include "ops/convert.h"
#include "ops/cuda/products.h"

namespace trainlaunch::testing {

class HostProducts final : public gpu::Products {
 public:
  // `ends`: what the library is said to do at a product's end, or leaves to the caller.
  explicit HostProducts(bool ends) : ends_(ends) {}
  size_t workspace_bytes() const override { return 100; }

  Result<gpu::Ending> run(void*, const gpu::Product& p, void* workspace) override {
    if (!workspace) return fail("no workspace");
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.n; ++j) {
        float s = 0;
        for (int64_t q = 0; q < p.k; ++q)
          s += get(p.a, p.in, p.transposed_a ? q * p.lda + i : i * p.lda + q) *
               get(p.b, p.in, p.transposed_b ? j * p.ldb + q : q * p.ldb + j);
        const int64_t at = i * p.ldc + j;
        if (p.add) s += get(p.add, p.out, at);
        if (ends_) s = end(p, s, at, j);
        put(p.c, p.out, at, s);
      }
    return gpu::Ending{ends_, true, ends_, ends_};
  }

  Status started() override { return {}; }

 private:
  static float end(const gpu::Product& p, float s, int64_t at, int64_t column) {
    if (p.bias) s += get(p.bias, p.in, column);
    if (p.pre) put(p.pre, p.in, at, s);
    const auto inner = [](float x) { return 0.7978845608028654f * (x + 0.044715f * x * x * x); };
    if (p.gelu) s = 0.5f * s * (1 + std::tanh(inner(s)));
    if (p.back) {
      const float x = get(p.back, p.in, at), t = std::tanh(inner(x));
      s *= 0.5f * (1 + t) +
           0.5f * x * (1 - t * t) * 0.7978845608028654f * (1 + 3 * 0.044715f * x * x);
    }
    return s;
  }
  static float get(const void* p, DType t, int64_t i) {
    return t == DType::f32 ? static_cast<const float*>(p)[i]
                           : float_of(static_cast<const uint16_t*>(p)[i]);
  }
  static void put(void* p, DType t, int64_t i, float x) {
    if (t == DType::f32)
      static_cast<float*>(p)[i] = x;
    else
      static_cast<uint16_t*>(p)[i] = bf16_of(x);
  }
  const bool ends_;
};

}  // namespace trainlaunch::testing
