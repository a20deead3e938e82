// What collectives move, before anything does: equal to what Comm::moved() counts afterwards.
#pragma once

#include <vector>

#include "comm/comm.h"

namespace trainlaunch {

// The ranks of a world: `first` has the first rank of each node, and the number of ranks at its
// end. A rank that shares memory with nobody is a node for itself.
struct Places {
  std::vector<int> first{0, 1};
  SumOrder order = SumOrder::nodes;

  int ranks() const { return first.back(); }
  int nodes() const { return static_cast<int>(first.size()) - 1; }
};

// Of one rank, for one call. For each owner elsewhere a node sends one partial sum, so that all
// ranks together send (nodes - 1) times the bytes of the view; a gather sends as much.
Moved moved_by_reduce_scatter(const Places& places, int rank, const Owners& owners, DType wire);
Moved moved_by_all_reduce(const Places& places, int rank, const Owners& owners, DType wire);
Moved moved_by_all_gather(const Places& places, int rank, const Owners& owners, DType type);

// Bytes that a rank keeps for what other nodes send it, if the largest part that it owns of any
// view that is reduced has `count` elements.
uint64_t kept_for_sums(const Places& places, int rank, int64_t count);

}  // namespace trainlaunch
