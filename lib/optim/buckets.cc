#include "optim/buckets.h"

#include <algorithm>

namespace trainlaunch {

namespace {

constexpr int64_t first_bytes = int64_t{1} << 20;

Owners deal_tiles(int64_t tiles, int ranks) {
  Owners owners;
  for (int r = 0; r <= ranks; ++r) owners.begin.push_back(tiles * r / ranks * Layout::tile);
  return owners;
}

}  // namespace

std::vector<Bucket> plan_buckets(const Layout& layout, int64_t bytes, int ranks) {
  std::vector<Bucket> buckets;
  const int entries = static_cast<int>(layout.entries.size());
  for (int first = 0; first < entries;) {
    const int64_t limit = buckets.empty() ? std::min(bytes, first_bytes) : bytes;
    const int64_t most = limit / (Layout::tile * static_cast<int64_t>(sizeof(float)));
    int64_t tiles = layout.entries[first].tiles;
    int last = first + 1;
    while (last < entries && tiles + layout.entries[last].tiles <= most) {
      tiles += layout.entries[last++].tiles;
    }
    buckets.push_back({first, last, layout.entries[first].offset, deal_tiles(tiles, ranks)});
    first = last;
  }
  return buckets;
}

}  // namespace trainlaunch
