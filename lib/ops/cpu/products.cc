#include "ops/cpu/products.h"

#include <algorithm>

namespace trainlaunch {

namespace {

// Rows of a part: many enough to pay for what oneDNN does to `b` first, few enough for many
// threads, and such that none is left alone (see Matmul::run).
int64_t part_rows(int64_t rows) {
  constexpr int64_t least = 64, most_parts = 64, vector = 16;
  const int64_t even = (rows + most_parts - 1) / most_parts;
  int64_t part = std::max(least, (even + vector - 1) / vector * vector);
  while (rows > part && rows % part == 1) part += vector;
  return part;
}

Matmul::Shape part(const Matmul::Shape& whole, int64_t rows) {
  Matmul::Shape s = whole;
  s.m = rows;
  if (s.transposed_a && s.stride_a == 0) s.stride_a = whole.m;
  return s;
}

}  // namespace

Products::Products(const Team& team, SameBits bits)
    : team_(team), in_parts_(bits == SameBits::any_threads) {
  const int count = in_parts_ ? team.size() : 1;
  for (int i = 0; i < count; ++i) matmuls_.emplace_back(in_parts_ ? 1 : team.size());
}

size_t Products::scratch_bytes(const Matmul::Shape& shape) const {
  const Matmul& m = matmuls_.front();
  if (!in_parts_) return m.scratch_bytes(shape);
  const int64_t rows = part_rows(shape.m), rest = shape.m % rows;
  size_t most = 0;
  if (shape.m >= rows) most = m.scratch_bytes(part(shape, rows));
  if (rest > 0) most = std::max(most, m.scratch_bytes(part(shape, rest)));
  constexpr size_t page = 4096;
  return (most + page - 1) / page * page * matmuls_.size();
}

void Products::run(const Matmul::Shape& shape, const float* a, const float* b, const float* bias,
                   float* c, std::span<std::byte> scratch) {
  if (!in_parts_) return matmuls_.front().run(shape, a, b, bias, c, scratch);
  const int64_t rows = part_rows(shape.m), parts = (shape.m + rows - 1) / rows;
  constexpr size_t line = 64;
  const size_t room = scratch.size() / matmuls_.size() / line * line;
  team_.each(parts, [&](int64_t i, int thread) {
    const int64_t first = i * rows;
    const int64_t step = shape.transposed_a ? 1 : shape.stride_a > 0 ? shape.stride_a : shape.k;
    matmuls_[static_cast<size_t>(thread)].run(
        part(shape, std::min(rows, shape.m - first)), a + first * step, b, bias,
        c + first * shape.n, scratch.subspan(static_cast<size_t>(thread) * room, room));
  });
}

}  // namespace trainlaunch
