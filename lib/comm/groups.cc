#include "comm/groups.h"

#include <algorithm>
#include <bit>

namespace trainlaunch {

std::vector<Group> plan_groups(const std::vector<int>& first, SumOrder order) {
  std::vector<Group> groups;
  for (int k = 0; k + 1 < static_cast<int>(first.size()); ++k) {
    for (int r = first[k], count; r < first[k + 1]; r += count) {
      const int left = first[k + 1] - r;
      count = left;
      if (order == SumOrder::tree) {
        const auto fits = std::bit_floor(static_cast<unsigned>(left));
        const unsigned aligned = r == 0 ? fits : 1u << std::countr_zero(static_cast<unsigned>(r));
        count = static_cast<int>(std::min(fits, aligned));
      }
      groups.push_back({k, r, count});
    }
  }
  return groups;
}

int node_of(const std::vector<int>& first, int rank) {
  return static_cast<int>(std::upper_bound(first.begin(), first.end(), rank) - first.begin()) - 1;
}

}  // namespace trainlaunch
