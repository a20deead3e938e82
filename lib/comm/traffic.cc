#include "comm/traffic.h"

#include "comm/groups.h"

namespace trainlaunch {

namespace {

uint64_t bytes(int64_t count, DType t) { return static_cast<uint64_t>(count) * bytes_of(t); }

}  // namespace

Moved moved_by_reduce_scatter(const Places& places, int rank, const Owners& owners, DType wire) {
  const int here = node_of(places.first, rank);
  const std::vector<Group> groups = plan_groups(places.first, places.order);
  Group mine{};
  for (const Group& g : groups)
    if (g.first <= rank) mine = g;

  Moved moved;
  const auto add_up = [&](const Group& g, int64_t count) {
    const int others = g.count - (g.first == mine.first ? 1 : 0);
    moved.shared += static_cast<uint64_t>(others) * bytes(count, DType::f32);
  };
  for (int o = 0; o < places.ranks(); ++o) {
    if (node_of(places.first, o) == here || mine.envoy(o) != rank) continue;
    moved.sent += bytes(owners.count(o), wire);
    add_up(mine, owners.count(o));
  }
  for (const Group& g : groups) {
    if (g.node == here)
      add_up(g, owners.count(rank));
    else
      moved.received += bytes(owners.count(rank), wire);
  }
  return moved;
}

// On one node the owner hands its sums out, and nobody fetches them.
Moved moved_by_all_reduce(const Places& places, int rank, const Owners& owners, DType wire) {
  Moved moved = moved_by_reduce_scatter(places, rank, owners, wire);
  if (places.nodes() == 1) {
    moved.shared *= 2;
    return moved;
  }
  moved += moved_by_all_gather(places, rank, owners, DType::f32);
  return moved;
}

Moved moved_by_all_gather(const Places& places, int rank, const Owners& owners, DType type) {
  const int here = node_of(places.first, rank);
  const Group mine{here, places.first[here], places.first[here + 1] - places.first[here]};
  Moved moved;
  moved.sent = static_cast<uint64_t>(places.nodes() - 1) * bytes(owners.count(rank), type);
  for (int o = 0; o < places.ranks(); ++o) {
    const bool is_here = node_of(places.first, o) == here;
    const int from = is_here ? o : mine.envoy(o);
    if (from != rank)
      moved.shared += bytes(owners.count(o), type);
    else if (!is_here)
      moved.received += bytes(owners.count(o), type);
  }
  return moved;
}

uint64_t kept_for_sums(const Places& places, int rank, int64_t count) {
  const int here = node_of(places.first, rank);
  int64_t elsewhere = 0;
  for (const Group& g : plan_groups(places.first, places.order)) elsewhere += g.node != here;
  return bytes(Awaited(count, elsewhere).elements(), DType::f32);
}

}  // namespace trainlaunch
