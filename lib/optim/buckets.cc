#include "optim/buckets.h"

#include <algorithm>
#include <array>
#include <limits>

namespace trainlaunch {

namespace {

constexpr int64_t first_bytes = int64_t{1} << 20;

Owners deal_tiles(int64_t tiles, int ranks) {
  Owners owners;
  for (int r = 0; r <= ranks; ++r) owners.begin.push_back(tiles * r / ranks * Layout::tile);
  return owners;
}

}  // namespace

std::vector<Bucket> plan_buckets(const Layout& layout, std::span<const ParamSpec> specs,
                                 ShardPolicy policy, int64_t bytes, int ranks) {
  const auto may_share = [&](int a, int b) {
    const ParamSpec &x = specs[layout.entries[a].param], &y = specs[layout.entries[b].param];
    if (policy >= ShardPolicy::gradients && (x.contributions > 1) != (y.contributions > 1))
      return false;
    return policy != ShardPolicy::full || x.block == y.block;
  };
  std::vector<Bucket> buckets;
  const int entries = static_cast<int>(layout.entries.size());
  for (int first = 0; first < entries;) {
    const int64_t limit = buckets.empty() ? std::min(bytes, first_bytes) : bytes;
    const int64_t most = limit / (Layout::tile * static_cast<int64_t>(sizeof(float)));
    int64_t tiles = layout.entries[first].tiles;
    int last = first + 1;
    while (last < entries && tiles + layout.entries[last].tiles <= most && may_share(first, last)) {
      tiles += layout.entries[last++].tiles;
    }
    buckets.push_back({first, last, layout.entries[first].offset, deal_tiles(tiles, ranks)});
    first = last;
  }
  return buckets;
}

Result<int64_t> measure_bucket(Comm& comm, View memory, DType wire, Seconds timeout) {
  if (comm.size() == 1) return usual_bucket;
  constexpr std::array<int64_t, 4> sizes{1 << 20, 4 << 20, 16 << 20, largest_trial};
  constexpr int rounds = 4;  // the first one is to warm up
  constexpr double nearly = 0.85;
  const Deadline deadline = Deadline::in(timeout);
  const int64_t whole = memory.size() / Layout::tile * Layout::tile;

  std::vector<std::pair<int64_t, double>> speeds;  // bytes, bytes a second
  for (const int64_t bytes : sizes) {
    const int64_t n = std::min<int64_t>(bytes / static_cast<int64_t>(sizeof(float)), whole);
    if (n == 0 || (!speeds.empty() && speeds.back().first == n * 4)) break;
    const Owners owners = deal_tiles(n / Layout::tile, comm.size());
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < rounds; ++i) {
      if (auto s = comm.barrier(deadline); !s) return forward(s);
      const auto start = Clock::now();
      const Ticket t = comm.reduce_scatter(memory.slice(0, n), owners, wire, Event());
      if (auto s = comm.wait(t, deadline); !s) return forward(s);
      if (i > 0) best = std::min(best, Seconds(Clock::now() - start).count());
    }
    speeds.emplace_back(n * 4, static_cast<double>(n) * 4 / best);
  }
  // Each rank has its own clock: what rank 0 chooses holds.
  double fastest = 0;
  for (const auto& [bytes, speed] : speeds) fastest = std::max(fastest, speed);
  std::array<double, 1> chosen{static_cast<double>(usual_bucket)};
  if (!speeds.empty()) {
    const auto enough = [&](const auto& s) { return s.second >= nearly * fastest; };
    chosen[0] = static_cast<double>(std::find_if(speeds.begin(), speeds.end(), enough)->first);
  }
  View told(chosen.data(), DType::f64, {1});
  if (auto s = comm.broadcast(told, 0, deadline); !s) return forward(s);
  return static_cast<int64_t>(chosen[0]);
}

}  // namespace trainlaunch
