// What the tests of lib/ops share: tensors that own their memory, and operands for each operation.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "ops/ops.h"

namespace trainlaunch::testing {

// A tensor on the host. Moves keep the view valid; copies are made by hand.
template <class T>
struct Tensor {
  std::vector<T> data;
  View view;

  Tensor() = default;
  explicit Tensor(std::initializer_list<int64_t> shape) : view(nullptr, dtype_of<T>, shape) {
    data.resize(view.size());
    view.p = data.data();
  }
  Tensor(std::initializer_list<int64_t> shape, std::vector<T> values)
      : data(std::move(values)), view(data.data(), dtype_of<T>, shape) {}
  Tensor(Tensor&&) = default;
  Tensor& operator=(Tensor&&) = default;

  operator View() const { return view; }
  T& operator[](int64_t i) { return data[i]; }
  int64_t size() const { return view.size(); }

  template <class To>
  Tensor<To> as() const {
    Tensor<To> other;
    other.data.assign(data.begin(), data.end());
    other.view = view;
    other.view.t = dtype_of<To>;
    other.view.p = other.data.data();
    return other;
  }
  Tensor clone() const { return as<T>(); }
};

// Numbers in [-scale, scale], the same for the same seed on every machine, exact in f32.
template <class T>
Tensor<T> random(std::initializer_list<int64_t> shape, uint64_t seed, double scale = 1.0) {
  Tensor<T> t(shape);
  for (int64_t i = 0; i < t.size(); ++i) {
    const Philox p = philox(seed, RandomStream::sample, i, 0);
    t[i] = static_cast<T>(static_cast<float>(scale * (2 * unit(p[0]) - 1)));
  }
  return t;
}

inline Tensor<int32_t> random_ids(std::initializer_list<int64_t> shape, uint64_t seed,
                                  int64_t vocab) {
  Tensor<int32_t> t(shape);
  for (int64_t i = 0; i < t.size(); ++i) {
    t[i] = static_cast<int32_t>(philox(seed, RandomStream::sample, i, 1)[0] % vocab);
  }
  return t;
}

inline std::unique_ptr<Stream> host_stream() { return *make_host_device()->stream(); }

// dbias += the sums of dy's columns, which come with the gradient of a weight: here dy^T dy, in dw.
inline void add_bias_gradient(Ops& ops, Stream& stream, View dy, View dw, View dbias) {
  ops.gemm(stream,
           {.a = dy, .b = dy, .c = dw, .transposed_a = true, .accumulate = true, .dbias = dbias});
}

// dx = dy gelu'(pre), as the end of a product: here with `one`, the unit matrix [n, n].
inline void through_gelu(Ops& ops, Stream& stream, View pre, View dy, View one, View dx) {
  ops.gemm(stream, {.a = dy, .b = one, .c = dx, .back = pre});
}
inline Tensor<double> unit_matrix(int64_t n) {
  Tensor<double> one({n, n});
  for (int64_t i = 0; i < n; ++i) one[i * n + i] = 1;
  return one;
}

}  // namespace trainlaunch::testing
