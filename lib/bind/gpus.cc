#include <algorithm>
#include <map>

#include "bind/parts.h"

namespace trainlaunch {
namespace {

using Group = std::vector<int>;

const Place& place_of(const Machine& m, int gpu) { return m.gpus[static_cast<size_t>(gpu)].place; }

// `count` of the groups, one after another so that ports, and then memory nodes, are used evenly.
std::vector<Group> spread(const Machine& m, std::vector<Group> groups, size_t count,
                          const std::map<int, std::vector<int>>& nics_of) {
  std::map<int, int> nic_users, node_users;
  const auto cost = [&](const Group& group) {
    int nics = 0, nodes = 0;
    for (int g : group) {
      for (int n : nics_of.at(g)) nics += nic_users[n];
      nodes += node_users[place_of(m, g).numa];
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
      ++node_users[place_of(m, g).numa];
    }
    chosen.push_back(std::move(*best));
    groups.erase(best);
  }
  return chosen;
}

std::map<int, std::vector<int>> map_nics(const std::vector<int>& gpus,
                                         const std::vector<std::vector<int>>& pairs) {
  std::map<int, std::vector<int>> out;
  for (size_t i = 0; i < gpus.size(); ++i) out[gpus[i]] = pairs[i];
  return out;
}

// Those of one package, and in it of one memory node, stand together; otherwise as they were.
std::vector<int> by_place(const Machine& m, const std::vector<int>& gpus) {
  std::map<int, size_t> package_rank, node_rank;
  std::vector<int> packages;
  for (int g : gpus) {
    packages.push_back(wish_for(m, {g}).package);
    package_rank.emplace(packages.back(), package_rank.size());
    node_rank.emplace(place_of(m, g).numa, node_rank.size());
  }
  std::vector<std::tuple<size_t, size_t, size_t>> keys;
  for (size_t i = 0; i < gpus.size(); ++i)
    keys.emplace_back(package_rank[packages[i]], node_rank[place_of(m, gpus[i]).numa], i);
  std::sort(keys.begin(), keys.end());
  std::vector<int> out;
  for (const auto& key : keys) out.push_back(gpus[std::get<2>(key)]);
  return out;
}

}  // namespace

std::vector<int> spread_gpus(const Machine& m, const std::vector<int>& gpus,
                             const std::vector<std::vector<int>>& pairs) {
  std::vector<Group> single;
  for (int g : gpus) single.push_back({g});
  std::vector<int> out;
  for (const Group& g : spread(m, single, gpus.size(), map_nics(gpus, pairs)))
    out.push_back(g.front());
  return out;
}

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
  const std::vector<int> ordered = each > 1 ? by_place(m, gpus) : gpus;
  std::vector<Group> groups;
  for (size_t i = 0; i + each <= g; i += each) {
    groups.emplace_back(ordered.begin() + static_cast<std::ptrdiff_t>(i),
                        ordered.begin() + static_cast<std::ptrdiff_t>(i + each));
    std::sort(groups.back().begin(), groups.back().end());
  }
  if (groups.size() > r) groups = spread(m, std::move(groups), r, map_nics(gpus, pairs));
  std::sort(groups.begin(), groups.end());
  return groups;
}

}  // namespace trainlaunch
