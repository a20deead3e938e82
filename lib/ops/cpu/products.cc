#include "ops/cpu/products.h"

#include <algorithm>
#include <vector>

namespace trainlaunch {

namespace {

// How many parts c is cut into each way, for one thread each.
struct Grid {
  int64_t rows = 1, columns = 1;
};

// A thread copies its rows of a and its columns of b: the fewer of both together, the better.
Grid grid_for(int64_t m, int64_t n, int64_t threads) {
  Grid best;
  int64_t least_copied = -1;
  for (int64_t columns = 1; columns <= threads; ++columns) {
    const Grid g{threads / columns, columns};
    const int64_t idle = threads - g.rows * g.columns;
    const int64_t copied = (m / g.rows + n / g.columns) * (1 + idle);
    if (least_copied >= 0 && copied >= least_copied) continue;
    best = g;
    least_copied = copied;
  }
  return best;
}

// The i-th of `parts` parts of [0, n), cut at multiples of `unit`.
struct Range {
  int64_t begin, end;
};
Range part(int64_t i, int64_t parts, int64_t n, int64_t unit) {
  const int64_t units = (n + unit - 1) / unit;
  return {units * i / parts * unit, std::min(n, units * (i + 1) / parts * unit)};
}

// What the largest part of a product needs, in floats.
int64_t floats_of_part(int64_t m, int64_t n, int64_t k, bool wide, const Grid& grid) {
  const auto largest = [](int64_t length, int64_t parts, int64_t unit) {
    const int64_t units = (length + unit - 1) / unit;
    return (units + parts - 1) / parts * unit;
  };
  return product_floats(largest(m, grid.rows, product_row_unit),
                        largest(n, grid.columns, product_column_unit), k, wide);
}

template <class T>
T* moved(T* p, int64_t by) {
  return p ? p + by : p;
}

template <class T>
Product<T> part_of(const Product<T>& whole, Range rows, Range columns) {
  Product<T> o = whole;
  o.m = rows.end - rows.begin;
  o.n = columns.end - columns.begin;
  o.a += rows.begin * (o.transposed_a ? 1 : o.a_stride);
  o.b += columns.begin * (o.transposed_b ? o.b_stride : 1);
  o.bias = moved(o.bias, columns.begin);
  o.column_sums = rows.begin == 0 ? moved(o.column_sums, columns.begin) : nullptr;
  const int64_t corner = rows.begin * o.stride + columns.begin;
  o.wide_c = moved(o.wide_c, corner);
  o.c = moved(o.c, corner);
  o.pre = moved(o.pre, corner);
  o.add = moved(o.add, corner);
  o.back = moved(o.back, corner);
  return o;
}

}  // namespace

template <class T>
ProductsBy best_products(SameBits bits) {
  const bool library = dtype_of<T> == DType::bf16 && bits == SameBits::same_threads;
  return library && Matmul::has_fast_bf16() ? ProductsBy::library : ProductsBy::kernels;
}
template ProductsBy best_products<float>(SameBits);
template ProductsBy best_products<Bf16>(SameBits);

template <class T>
size_t Products<T>::scratch_bytes(int64_t m, int64_t n, int64_t k) const {
  const bool wide = sizeof(T) == sizeof(float);
  const int64_t floats = floats_of_part(m, n, k, wide, grid_for(m, n, team_.size()));
  size_t most = sizeof(float) * static_cast<size_t>(team_.size() * floats);
  if (!library_) return most;
  for (const bool transposed : {false, true}) {  // what a model asks for
    most = std::max(most, library_->scratch_bytes({.m = m,
                                                   .n = n,
                                                   .k = k,
                                                   .transposed_b = transposed,
                                                   .type = dtype_of<T>,
                                                   .result = dtype_of<T>}));
  }
  for (const bool accumulate : {false, true}) {
    most = std::max(most, library_->scratch_bytes({.m = k,
                                                   .n = n,
                                                   .k = m,
                                                   .transposed_a = true,
                                                   .accumulate = accumulate,
                                                   .type = dtype_of<T>}));
  }
  return most;
}

template <class T>
void Products<T>::run(const Product<T>& whole, std::span<std::byte> scratch) {
  if (library_ && run_library(whole, scratch)) return;
  run_kernels(whole, scratch);
}

// What follows the product is done in a second pass over c.
template <class T>
bool Products<T>::run_library(const Product<T>& o, std::span<std::byte> scratch) {
  T* c = o.gelu && o.pre ? o.pre : o.c;
  const bool done = library_->run({.m = o.m,
                                   .n = o.n,
                                   .k = o.k,
                                   .transposed_a = o.transposed_a,
                                   .transposed_b = o.transposed_b,
                                   .accumulate = o.accumulate,
                                   .type = dtype_of<T>,
                                   .result = o.wide_c ? DType::f32 : dtype_of<T>},
                                  o.a, o.b, o.wide_c ? static_cast<void*>(o.wide_c) : c, scratch);
  if (done && o.column_sums) {
    team_.split(o.n, kernel_unit, o.k * o.n, [&](int64_t begin, int64_t end) {
      loops_.bias_back_columns(o.b, o.k, o.n, begin, end, o.column_sums);
    });
  }
  if (!done || o.wide_c) return done;
  team_.split(o.m, 1, 4 * o.m * o.n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = i * o.stride;
      if (o.bias) loops_.add(c + at, o.bias, c + at, o.n);
      if (o.add) loops_.add(c + at, o.add + at, c + at, o.n);
      if (o.back) loops_.gelu_back(o.back + at, c + at, c + at, o.n);
      if (o.gelu) loops_.gelu(c + at, o.c + at, o.n);
    }
  });
  return true;
}

template <class T>
void Products<T>::run_kernels(const Product<T>& whole, std::span<std::byte> scratch) const {
  constexpr int64_t little = int64_t{64} * 64 * 64;
  const bool alone = whole.m * whole.n * std::max<int64_t>(whole.k, 1) < little;
  const Grid grid = grid_for(whole.m, whole.n, alone ? 1 : team_.size());
  const int64_t floats = floats_of_part(whole.m, whole.n, whole.k, whole.wide_c != nullptr, grid);
  std::vector<float> own;
  float* memory = reinterpret_cast<float*>(scratch.data());
  if (sizeof(float) * static_cast<size_t>(team_.size() * floats) > scratch.size()) {
    own.resize(static_cast<size_t>(team_.size() * floats));
    memory = own.data();
  }
  team_.each(grid.rows * grid.columns, [&](int64_t i, int thread) {
    const Range rows = part(i / grid.columns, grid.rows, whole.m, product_row_unit);
    const Range columns = part(i % grid.columns, grid.columns, whole.n, product_column_unit);
    if (rows.begin == rows.end || columns.begin == columns.end) return;
    loops_.product(part_of(whole, rows, columns), memory + thread * floats);
  });
}

template class Products<float>;
template class Products<Bf16>;

}  // namespace trainlaunch
