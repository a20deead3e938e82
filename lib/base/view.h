// A View says where numbers are, of which type and shape. It owns nothing, and the memory may be a
// device's: only code that was given a Device knows whether the host may read it.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace trainlaunch {

enum class DType : uint8_t { f32, f64, bf16, i32, u8 };

constexpr size_t bytes_of(DType t) {
  switch (t) {
    case DType::f32:
      return 4;
    case DType::f64:
      return 8;
    case DType::bf16:
      return 2;
    case DType::i32:
      return 4;
    case DType::u8:
      return 1;
  }
  return 0;
}
constexpr const char* name_of(DType t) {
  switch (t) {
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
    case DType::bf16:
      return "bf16";
    case DType::i32:
      return "i32";
    case DType::u8:
      return "u8";
  }
  return "?";
}

// The upper half of an f32; what converts it is in lib/ops/convert.h.
struct Bf16 {
  uint16_t bits;
};

template <class T>
inline constexpr DType dtype_of = [] {
  static_assert(sizeof(T) == 0, "no such DType");
  return DType::u8;
}();
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<Bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<uint8_t> = DType::u8;

// Contiguous, row-major: the last dimension is dense.
struct View {
  void* p = nullptr;
  DType t = DType::f32;
  int n = 0;                       // dimensions used
  std::array<int64_t, 4> shape{};  // elements

  View() = default;
  View(void* where, DType type, std::initializer_list<int64_t> dims) : p(where), t(type) {
    assert(dims.size() <= 4);
    for (int64_t d : dims) shape[n++] = d;
  }

  explicit operator bool() const { return p != nullptr; }
  int64_t size() const {
    int64_t s = n > 0 ? 1 : 0;
    for (int i = 0; i < n; ++i) s *= shape[i];
    return s;
  }
  size_t bytes() const { return static_cast<size_t>(size()) * bytes_of(t); }
  // Rows and columns of the view read as a matrix: everything but the last dimension, and the last.
  int64_t cols() const { return n > 0 ? shape[n - 1] : 0; }
  int64_t rows() const { return cols() > 0 ? size() / cols() : 0; }

  // Host memory only.
  template <class T>
  T* as() const {
    assert(t == dtype_of<T>);
    return static_cast<T*>(p);
  }

  // `count` elements from element `offset`, as one dimension.
  View slice(int64_t offset, int64_t count) const {
    assert(offset >= 0 && count >= 0 && offset + count <= size());
    return View(static_cast<std::byte*>(p) + static_cast<size_t>(offset) * bytes_of(t), t, {count});
  }
  // The same elements under another shape of the same size.
  View reshape(std::initializer_list<int64_t> dims) const {
    View v(p, t, dims);
    assert(v.size() == size());
    return v;
  }
};

}  // namespace trainlaunch
