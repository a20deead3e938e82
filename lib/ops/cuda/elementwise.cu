// What is computed for each element by itself.

#include "base/bf16.h"
#include "base/philox.h"
#include "ops/cuda/dispatch.h"
#include "ops/cuda/gelu.h"
#include "ops/cuda/kernels.h"

namespace trainlaunch::gpu {

namespace {

constexpr unsigned threads = 256;

// f.run<N>(i) does elements i to i + N.
template <int N, class F>
__global__ void each_kernel(F f, int64_t n) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (i + N <= n) {
    f.template run<N>(i);
  } else {
    for (int64_t j = i; j < n; ++j) f.template run<1>(j);
  }
}
template <int N, class F>
void each(void* stream, int64_t n, const F& f) {
  if (n == 0) return;
  launch(stream, dim3(blocks(divide_up(n, int64_t{threads} * N))), threads, 0, each_kernel<N, F>, f,
         n);
}

template <class From, class To>
struct Convert {
  const From* from;
  To* to;
  template <int N>
  TL_DEVICE void run(int64_t i) const {
    const auto x = load<N>(from + i);
    Pack<To, N> y;
    for (int j = 0; j < N; ++j) y[j] = narrow<To>(widen(x[j]));
    store<N>(to + i, y);
  }
};
template <class From, class To>
void convert_as(void* stream, View from, View to) {
  const Convert<From, To> f{pointer<From>(from), pointer<To>(to)};
  if (sixteen(0, {from.p, to.p})) return each<4>(stream, to.size(), f);
  each<1>(stream, to.size(), f);
}
template <class From>
void convert_from(void* stream, View from, View to) {
  if (to.t == DType::f32) return convert_as<From, float>(stream, from, to);
  if (to.t == DType::f64) return convert_as<From, double>(stream, from, to);
  assert(to.t == DType::bf16);
  convert_as<From, bf16>(stream, from, to);
}

template <class T>
struct Fill {
  T* to;
  T value;
  template <int N>
  TL_DEVICE void run(int64_t i) const {
    Pack<T, N> y;
    for (int j = 0; j < N; ++j) y[j] = value;
    store<N>(to + i, y);
  }
};
template <class T>
void fill_as(void* stream, View v, T value) {
  const Fill<T> f{pointer<T>(v), value};
  with_width<T>(sixteen(0, {v.p}), [&](auto width) { each<width.value>(stream, v.size(), f); });
}

struct Sum {
  float* to;
  const float* parts[most_parts];
  int count;
  template <int N>
  TL_DEVICE void run(int64_t i) const {
    auto sum = load<N>(parts[0] + i);
    for (int p = 1; p < count; ++p) {
      const auto x = load<N>(parts[p] + i);
      for (int j = 0; j < N; ++j) sum[j] += x[j];
    }
    store<N>(to + i, sum);
  }
};

template <class T>
struct FinishProduct {
  T* c;
  const T* bias;
  T* pre;
  bool gelu;
  const T *add, *back;
  int64_t columns;
  template <int N>
  TL_DEVICE void run(int64_t i) const {
    auto y = load<N>(c + i);
    float x[N];
    for (int j = 0; j < N; ++j) x[j] = widen(y[j]);
    if (bias) {
      const auto b = load<N>(bias + i % columns);
      for (int j = 0; j < N; ++j) x[j] += widen(b[j]);
    }
    if (pre) {
      for (int j = 0; j < N; ++j) y[j] = narrow<T>(x[j]);
      store<N>(pre + i, y);
    }
    if (gelu) {
      for (int j = 0; j < N; ++j) x[j] = gelu_value(x[j]);
    }
    if (add) {
      const auto a = load<N>(add + i);
      for (int j = 0; j < N; ++j) x[j] += widen(a[j]);
    }
    if (back) {
      const auto b = load<N>(back + i);
      for (int j = 0; j < N; ++j) x[j] *= gelu_derivative(widen(b[j]));
    }
    for (int j = 0; j < N; ++j) y[j] = narrow<T>(x[j]);
    store<N>(c + i, y);
  }
};

// The random half word of an element, and the rounding with it, are those of ops/convert.h.
TL_DEVICE bf16 round_by_chance(float x, uint32_t random) {
  const uint32_t bits = float_as_bits(x);
  if ((bits & 0x7f800000) == 0x7f800000) return narrow<bf16>(x);
  return {static_cast<uint16_t>((bits + random) >> 16)};
}

struct Update {
  float beta1, beta2, eps, weight_decay;
  bool stochastic;
  uint64_t seed, element;
  float *weight, *m, *v;
  const float* grad;
  bf16* copy;
  AdamScalars scalars;

  template <int N>
  TL_DEVICE void run(int64_t i) const {
    const float scale = static_cast<float>(*scalars.grad_scale);
    const double rate = *scalars.learning_rate;
    const float decay = static_cast<float>(rate * weight_decay);
    const float inverse1 = static_cast<float>(1.0 / *scalars.correction1);
    const float root_inverse2 = static_cast<float>(1.0 / sqrt(*scalars.correction2));

    auto w = load<N>(weight + i), mean = load<N>(m + i), square = load<N>(v + i);
    const auto gradient = load<N>(grad + i);
    for (int j = 0; j < N; ++j) {
      const float g = gradient[j] * scale;
      mean[j] = beta1 * mean[j] + (1.0f - beta1) * g;
      square[j] = beta2 * square[j] + (1.0f - beta2) * g * g;
      const float step = (mean[j] * inverse1) / (sqrtf(square[j]) * root_inverse2 + eps);
      w[j] -= decay * w[j] + static_cast<float>(rate) * step;
    }
    store<N>(weight + i, w);
    store<N>(m + i, mean);
    store<N>(v + i, square);
    if (copy) store<N>(copy + i, rounded<N>(w, element + i));
  }

 private:
  template <int N>
  TL_DEVICE Pack<bf16, N> rounded(const Pack<float, N>& w, uint64_t first) const {
    Pack<bf16, N> r;
    Philox random{};
    for (int j = 0; j < N; ++j) {
      const uint64_t e = first + j;
      if (stochastic && (j == 0 || e % 8 == 0))
        random = philox(seed, RandomStream::rounding, e / 8, static_cast<uint32_t>(*scalars.step));
      r[j] = stochastic ? round_by_chance(w[j], random[e % 8 / 2] >> (e % 2 * 16) & 0xffff)
                        : narrow<bf16>(w[j]);
    }
    return r;
  }
};

}  // namespace

void convert(void* stream, View from, View to) {
  assert(from.size() == to.size());
  if (from.t == to.t) return copy_bytes(stream, to.p, from.p, to.bytes());
  if (from.t == DType::f32) return convert_from<float>(stream, from, to);
  if (from.t == DType::f64) return convert_from<double>(stream, from, to);
  assert(from.t == DType::bf16);
  convert_from<bf16>(stream, from, to);
}

void fill(void* stream, View v, double value) {
  if (value == 0) return zero_bytes(stream, v.p, v.bytes());
  switch (v.t) {
    case DType::f32:
      return fill_as(stream, v, static_cast<float>(value));
    case DType::f64:
      return fill_as(stream, v, value);
    case DType::bf16:
      return fill_as(stream, v, bf16{bf16_of(static_cast<float>(value))});
    case DType::i32:
      return fill_as(stream, v, static_cast<int32_t>(value));
    case DType::u8:
      return fill_as(stream, v, static_cast<uint8_t>(value));
  }
}

void sum(void* stream, View dst, const View* parts, int count) {
  assert(dst.t == DType::f32 && count >= 1 && count <= most_parts);
  Sum f{pointer<float>(dst), {}, count};
  bool packed = sixteen(0, {dst.p});
  for (int i = 0; i < count; ++i) {
    f.parts[i] = pointer<float>(parts[i]);
    packed = packed && sixteen(0, {parts[i].p});
  }
  with_width<float>(packed, [&](auto width) { each<width.value>(stream, dst.size(), f); });
}

void finish(void* stream, const Finish& f) {
  with_type(f.c.t, [&](auto type) {
    using T = decltype(type);
    const int64_t columns = f.c.cols();
    const bool packed = sixteen(columns * static_cast<int64_t>(sizeof(T)),
                                {f.c.p, f.bias.p, f.pre.p, f.add.p, f.back.p});
    with_width<T>(packed, [&](auto width) {
      each<width.value>(stream, f.c.size(),
                        FinishProduct<T>{pointer<T>(f.c), pointer<T>(f.bias), pointer<T>(f.pre),
                                         f.gelu, pointer<T>(f.add), pointer<T>(f.back), columns});
    });
  });
}

void adam(void* stream, const Adam& a) {
  assert(!a.copy || a.copy.t == DType::bf16);
  const Update f{a.beta1,
                 a.beta2,
                 a.eps,
                 a.weight_decay,
                 a.stochastic,
                 a.seed,
                 a.element,
                 pointer<float>(a.weight),
                 pointer<float>(a.m),
                 pointer<float>(a.v),
                 pointer<float>(a.grad),
                 pointer<bf16>(a.copy),
                 a.scalars};
  const bool packed = sixteen(0, {a.weight.p, a.grad.p, a.m.p, a.v.p, a.copy.p});
  with_width<float>(packed, [&](auto width) { each<width.value>(stream, a.weight.size(), f); });
}

}  // namespace trainlaunch::gpu
