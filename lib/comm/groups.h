// Which ranks' numbers are added up before they leave their node.
#pragma once

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

// The node of a rank.
int node_of(const std::vector<int>& first, int rank);

}  // namespace trainlaunch
