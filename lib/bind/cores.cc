#include <algorithm>
#include <map>
#include <set>

#include "bind/parts.h"

namespace trainlaunch {
namespace {

constexpr int unset = -1;

struct Deal {
  Deal(const Machine& machine, const std::vector<int>& cores, const std::vector<CoreWish>& wishes)
      : allowed(cores),
        distance(wishes.size()),
        owner(cores.size(), unset),
        reach(wishes.size(), unset),
        count(wishes.size(), 0) {
    for (size_t r = 0; r < wishes.size(); ++r)
      for (int c : cores)
        distance[r].push_back(
            trainlaunch::distance(machine.cores[static_cast<size_t>(c)], wishes[r]));
  }

  const std::vector<int>& allowed;
  std::vector<std::vector<int>> distance;  // [rank][position in allowed]
  std::vector<int> owner;                  // of a position in allowed
  std::vector<int> reach;                  // how far a rank goes: where its first core was
  std::vector<int> count;

  // The free core that is nearest to the rank, within its reach. One that comes from far takes from
  // the end, so that those who live there keep neighbours.
  int nearest_free(size_t rank) const {
    int best = unset;
    for (size_t i = 0; i < allowed.size(); ++i) {
      const int d = distance[rank][i];
      if (owner[i] != unset || (reach[rank] != unset && d > reach[rank])) continue;
      if (best == unset || d < distance[rank][static_cast<size_t>(best)] ||
          (d == distance[rank][static_cast<size_t>(best)] && d > 0))
        best = static_cast<int>(i);
    }
    return best;
  }

  bool take(size_t rank) {
    const int i = nearest_free(rank);
    if (i == unset) return false;
    owner[static_cast<size_t>(i)] = static_cast<int>(rank);
    reach[rank] = std::max(reach[rank], distance[rank][static_cast<size_t>(i)]);
    ++count[rank];
    return true;
  }

  // The first core of each rank: nobody is driven away from beside its GPU by one from afar.
  void take_first() {
    for (int far = 0; far <= 3; ++far)
      for (size_t r = 0; r < distance.size(); ++r) {
        if (count[r] > 0) continue;
        reach[r] = far;
        if (!take(r)) reach[r] = unset;
      }
  }

  // Then ranks take turns, one core each: fair where they compete. One with cores beside its GPU
  // takes no others; one without stops at an even share.
  void take_turns() {
    const size_t ranks = distance.size();
    const int even = std::max<int>(1, static_cast<int>(allowed.size() / ranks));
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t r = 0; r < ranks; ++r) {
        if (reach[r] > 0 && count[r] >= even) continue;
        progress = take(r) || progress;
      }
    }
  }

  // Ranks to which all cores are equally near swap theirs, so that each has neighbouring ones: that
  // keeps caches whole.
  void gather() {
    std::map<std::vector<int>, std::vector<size_t>> alike;
    for (size_t r = 0; r < distance.size(); ++r) alike[distance[r]].push_back(r);
    for (const auto& [key, ranks] : alike) {
      const std::set<int> members(ranks.begin(), ranks.end());
      auto rank = ranks.begin();
      int left = count[*rank];
      for (int& o : owner) {
        if (!members.contains(o)) continue;
        while (left == 0) left = count[*++rank];
        o = static_cast<int>(*rank);
        --left;
      }
    }
  }
};

}  // namespace

CoreWish wish_for(const Machine& m, const std::vector<int>& gpus) {
  CoreWish wish;
  for (int g : gpus) {
    const Place& place = m.gpus[static_cast<size_t>(g)].place;
    if (!m.knows(place)) return {};
    wish.known = true;
    wish.beside |= place.cpus;
    wish.numa = place.numa;
  }
  std::set<int> packages;
  for (const Core& c : m.cores)
    if (std::any_of(c.cpus.begin(), c.cpus.end(),
                    [&](int cpu) { return wish.beside.test(static_cast<size_t>(cpu)); }))
      packages.insert(c.package);
  if (packages.size() == 1) wish.package = *packages.begin();
  return wish;
}

int distance(const Core& core, const CoreWish& wish) {
  if (!wish.known) return 0;
  for (int cpu : core.cpus)
    if (wish.beside.test(static_cast<size_t>(cpu))) return 0;
  if (wish.numa >= 0 && core.numa == wish.numa) return 1;
  return core.package >= 0 && core.package == wish.package ? 2 : 3;
}

namespace {

// More ranks than cores: each on the core that is nearest and least used.
void double_up(const Deal& deal, std::vector<CoreShare>& shares) {
  std::vector<int> users(deal.allowed.size(), 0);
  for (size_t r = 0; r < shares.size(); ++r) {
    size_t best = 0;
    for (size_t i = 1; i < users.size(); ++i)
      if (std::make_pair(deal.distance[r][i], users[i]) <
          std::make_pair(deal.distance[r][best], users[best]))
        best = i;
    ++users[best];
    shares[r].cores.push_back(deal.allowed[best]);
    shares[r].distance = deal.distance[r][best];
    shares[r].shared = true;
  }
}

}  // namespace

std::vector<CoreShare> deal_cores(const Machine& machine, const std::vector<int>& allowed,
                                  const std::vector<CoreWish>& wishes) {
  std::vector<CoreShare> shares(wishes.size());
  if (wishes.empty() || allowed.empty()) return shares;
  Deal deal(machine, allowed, wishes);
  if (wishes.size() > allowed.size()) {
    double_up(deal, shares);
    return shares;
  }
  deal.take_first();
  deal.take_turns();
  deal.gather();
  for (size_t i = 0; i < allowed.size(); ++i) {
    if (deal.owner[i] == unset) continue;
    const auto r = static_cast<size_t>(deal.owner[i]);
    shares[r].cores.push_back(allowed[i]);
    shares[r].distance = std::max(shares[r].distance, deal.distance[r][i]);
  }
  return shares;
}

std::vector<CoreShare> split_cores(const std::vector<int>& allowed, size_t ranks) {
  std::vector<CoreShare> shares(ranks);
  const size_t n = allowed.size();
  for (size_t r = 0; n > 0 && r < ranks; ++r) {
    const size_t from = r * n / ranks, to = std::max(from + 1, (r + 1) * n / ranks);
    for (size_t i = from; i < to; ++i) shares[r].cores.push_back(allowed[i]);
    shares[r].shared = ranks > n;
  }
  return shares;
}

}  // namespace trainlaunch
