#include <algorithm>
#include <functional>
#include <numeric>

#include "model/model.h"

namespace trainlaunch {

int64_t ParamSpec::size() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

Layout Layout::plan(std::span<const ParamSpec> specs) {
  // What is used last is ready first; what is used at both ends is ready last.
  std::vector<int> order(specs.size());
  std::iota(order.rbegin(), order.rend(), 0);
  std::stable_partition(order.begin(), order.end(),
                        [&](int p) { return specs[p].contributions == 1; });

  Layout layout;
  layout.entry_of.resize(specs.size());
  for (int p : order) {
    const int64_t size = specs[p].size(), tiles = (size + tile - 1) / tile;
    layout.entry_of[p] = static_cast<int>(layout.entries.size());
    layout.entries.push_back({p, layout.tiles * tile, size, tiles});
    layout.tiles += tiles;
  }
  return layout;
}

}  // namespace trainlaunch
