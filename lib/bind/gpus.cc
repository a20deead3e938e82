#include <algorithm>
#include <map>

#include "bind/parts.h"

namespace trainlaunch {
namespace {

using Group = std::vector<int>;

// `count` of the groups, so that ports, and then memory nodes, are used evenly.
std::vector<Group> spread(const Machine& m, std::vector<Group> groups, size_t count,
                          const std::map<int, std::vector<int>>& nics_of) {
  std::map<int, int> nic_users, node_users;
  const auto cost = [&](const Group& group) {
    int nics = 0, nodes = 0;
    for (int g : group) {
      for (int n : nics_of.at(g)) nics += nic_users[n];
      nodes += node_users[m.gpus[static_cast<size_t>(g)].place.numa];
    }
    return std::make_pair(nics, nodes);
  };
  std::vector<Group> chosen;
  while (chosen.size() < count) {
    const auto best =
        std::min_element(groups.begin(), groups.end(),
                         [&](const auto& a, const auto& b) { return cost(a) < cost(b); });
    for (int g : *best) {
      for (int n : nics_of.at(g)) ++nic_users[n];
      ++node_users[m.gpus[static_cast<size_t>(g)].place.numa];
    }
    chosen.push_back(std::move(*best));
    groups.erase(best);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace

std::vector<std::vector<int>> deal_gpus(const Machine& m, int ranks, const std::vector<int>& gpus,
                                        const std::vector<std::vector<int>>& pairs) {
  const size_t r = static_cast<size_t>(ranks), g = gpus.size();
  std::vector<Group> out(r);
  if (g == 0) return out;
  if (r >= g) {
    for (size_t i = 0; i < r; ++i) out[i] = {gpus[i * g / r]};
    return out;
  }
  const size_t each = g / r;
  std::vector<Group> groups;
  for (size_t i = 0; i + each <= g; i += each)
    groups.emplace_back(gpus.begin() + static_cast<std::ptrdiff_t>(i),
                        gpus.begin() + static_cast<std::ptrdiff_t>(i + each));
  if (groups.size() == r) return groups;
  std::map<int, std::vector<int>> nics_of;
  for (size_t i = 0; i < g; ++i) nics_of[gpus[i]] = pairs[i];
  return spread(m, std::move(groups), r, nics_of);
}

}  // namespace trainlaunch
