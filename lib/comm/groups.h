// Which ranks' numbers are added up before they leave their node.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "comm/comm.h"

namespace trainlaunch {

// Ranks of one node that follow one another.
struct Group {
  int node, first, count;
  // The rank of it that deals with what is owned by a rank elsewhere; takes turns.
  int envoy(int owner) const { return first + (owner < first ? owner : owner - count) % count; }
};

// In rank order: the nodes, or for a tree the largest branches of it that lie within one. `first`
// has the first rank of each node, and the number of ranks at its end.
std::vector<Group> plan_groups(const std::vector<int>& first, SumOrder order);

// Partial sums that a rank awaits from the groups of other nodes, for its own part of `count`
// elements. They travel in pieces, so that one is summed and sent while the one before it is on its
// way, and there is room for a few of each group.
struct Awaited {
  static constexpr int64_t piece = 256 << 10, most = 4;
  int64_t groups, length, window;  // elements of a piece; how many of each group have room
  Awaited(int64_t count, int64_t all)
      : groups(all),
        length(std::min(count, piece)),
        window(std::min((count + piece - 1) / piece, most)) {}
  int64_t elements() const { return groups * length * window; }
};

// The node of a rank.
int node_of(const std::vector<int>& first, int rank);

}  // namespace trainlaunch
