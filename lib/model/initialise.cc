#include <algorithm>
#include <cmath>
#include <numbers>
// Header only: nothing to link.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "model/model.h"

namespace trainlaunch {

namespace {

// Four independent standard normals from one Philox block (Box & Muller, "A Note on the Generation
// of Random Normal Deviates").
std::array<double, 4> normals(const Philox& r) {
  std::array<double, 4> z;
  for (int i = 0; i < 4; i += 2) {
    const double radius = std::sqrt(-2.0 * std::log(unit(r[i])));
    const double angle = 2.0 * std::numbers::pi * unit(r[i + 1]);
    z[i] = radius * std::cos(angle);
    z[i + 1] = radius * std::sin(angle);
  }
  return z;
}

// Elements [offset, offset + size) of a parameter.
void fill_normal(float* w, int64_t offset, int64_t size, double stddev, uint64_t seed,
                 uint64_t index) {
  for (int64_t i = 0; i < size; i += 4) {
    const auto position = static_cast<uint32_t>((offset + i) / 4);
    const auto z = normals(philox(seed, RandomStream::init, index, position));
    for (int64_t k = i; k < std::min(i + 4, size); ++k) {
      w[k] = static_cast<float>(stddev * z[k - i]);
    }
  }
}

}  // namespace

void initialise(const ParamSpec& spec, uint64_t seed, int64_t offset, View part) {
  float* const w = part.as<float>();
  switch (spec.init.kind) {
    case Init::zero:
      std::fill(w, w + part.size(), 0.0f);
      break;
    case Init::one:
      std::fill(w, w + part.size(), 1.0f);
      break;
    case Init::normal:
      fill_normal(w, offset, part.size(), spec.init.stddev, seed,
                  XXH3_64bits(spec.name.data(), spec.name.size()));
      break;
  }
}

void initialise(std::span<const ParamSpec> specs, const Layout& layout, uint64_t seed, View flat) {
  float* const base = flat.as<float>();
  std::fill(base, base + layout.elements(), 0.0f);
  for (const Layout::Entry& e : layout.entries)
    initialise(specs[e.param], seed, 0, flat.slice(e.offset, e.size));
}

}  // namespace trainlaunch
