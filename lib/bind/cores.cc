#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "bind/parts.h"

namespace trainlaunch {
namespace {

constexpr int unset = -1;

// Cores that are equally far from each rank.
struct Pool {
  std::vector<int> distance;   // from each rank
  std::vector<size_t> amount;  // each rank has of it
  size_t free = 0;
  size_t residents = 0;  // ranks that it is beside
};

class Deal {
 public:
  Deal(const Machine& machine, const std::vector<int>& cores, const std::vector<CoreWish>& wishes)
      : count_(wishes.size(), 0) {
    std::map<std::vector<int>, size_t> known;
    for (int c : cores) {
      std::vector<int> distances;
      for (const CoreWish& w : wishes)
        distances.push_back(distance(machine.cores[static_cast<size_t>(c)], w));
      const auto [pool, fresh] = known.emplace(std::move(distances), pools_.size());
      if (fresh) add_pool(pool->first);
      ++pools_[pool->second].free;
      pool_of_.push_back(pool->second);
    }
  }

  // Ranks take turns, one core each, of those beside their GPUs; first what the fewest can have.
  void share_beside() {
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t r = 0; r < count_.size(); ++r) {
        Pool* best = nullptr;
        for (Pool& p : pools_)
          if (p.free > 0 && p.distance[r] == 0 && (!best || p.residents < best->residents))
            best = &p;
        if (!best) continue;
        give(*best, r);
        progress = true;
      }
    }
  }

  // Ranks with fewer cores than their target take turns, the ones with some nearest first. All
  // targets together are no more than there are cores, so that each is met.
  void top_up(const std::vector<size_t>& target) {
    for (int far = 0; far <= 3; ++far)
      for (bool progress = true; progress;) {
        progress = false;
        for (size_t r = 0; r < count_.size(); ++r)
          if (count_[r] < target[r]) progress = take_within(far, r, target) || progress;
      }
  }

  const std::vector<size_t>& count() const { return count_; }
  int distance_of(size_t rank, size_t core) const { return pools_[pool_of_[core]].distance[rank]; }

  // The rank of each core, or none. Those who live beside a pool have its first cores, in order.
  std::vector<int> owners() const {
    std::vector<std::vector<int>> of_pool;
    for (const Pool& p : pools_) {
      std::vector<int>& owners = of_pool.emplace_back();
      for (const bool resident : {true, false})
        for (size_t r = 0; r < count_.size(); ++r)
          if ((p.distance[r] == 0) == resident)
            owners.insert(owners.end(), p.amount[r], static_cast<int>(r));
      owners.insert(owners.end(), p.free, unset);
    }
    std::vector<int> out;
    std::vector<size_t> next(pools_.size(), 0);
    for (size_t pool : pool_of_) out.push_back(of_pool[pool][next[pool]++]);
    gather(out);
    return out;
  }

 private:
  void add_pool(const std::vector<int>& distances) {
    Pool& p = pools_.emplace_back();
    p.distance = distances;
    p.amount.resize(distances.size(), 0);
    p.residents = static_cast<size_t>(std::count(distances.begin(), distances.end(), 0));
  }

  void give(Pool& pool, size_t rank) {
    --pool.free;
    ++pool.amount[rank];
    ++count_[rank];
  }

  // The nearest core within `far`: a free one, else one of the rank that has most, if that is more
  // than its target.
  bool take_within(int far, size_t rank, const std::vector<size_t>& target) {
    std::tuple<int, bool, size_t> best{far + 1, false, 0};
    Pool* pool = nullptr;
    size_t owner = 0;
    const auto offer = [&](Pool& p, bool taken, size_t from) {
      const std::tuple key{p.distance[rank], taken, taken ? SIZE_MAX - count_[from] : 0};
      if (key >= best) return;
      best = key;
      pool = &p;
      owner = from;
    };
    for (Pool& p : pools_) {
      if (p.distance[rank] > std::get<0>(best)) continue;
      if (p.free > 0) offer(p, false, rank);
      for (size_t r = 0; p.free == 0 && r < count_.size(); ++r)
        if (p.amount[r] > 0 && count_[r] > target[r]) offer(p, true, r);
    }
    if (!pool) return false;
    if (pool->free == 0) {
      --pool->amount[owner];
      --count_[owner];
      ++pool->free;
    }
    give(*pool, rank);
    return true;
  }

  // Ranks to which all cores are equally near swap theirs, so that each has neighbouring ones: that
  // keeps caches whole.
  void gather(std::vector<int>& owner) const {
    std::map<std::vector<int>, std::vector<size_t>> alike;
    for (size_t r = 0; r < count_.size(); ++r) {
      std::vector<int> distances;
      for (const Pool& p : pools_) distances.push_back(p.distance[r]);
      alike[distances].push_back(r);
    }
    for (const auto& [key, ranks] : alike) {
      const std::set<int> members(ranks.begin(), ranks.end());
      auto rank = ranks.begin();
      size_t left = count_[*rank];
      for (int& o : owner) {
        if (!members.contains(o)) continue;
        while (left == 0) left = count_[*++rank];
        o = static_cast<int>(*rank);
        --left;
      }
    }
  }

  std::vector<Pool> pools_;
  std::vector<size_t> pool_of_;  // of each core
  std::vector<size_t> count_;    // of each rank
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

// What each rank should have: an even share, or no more than is beside its GPUs on the whole
// machine, if anything is.
std::vector<size_t> targets(const Machine& machine, size_t even,
                            const std::vector<CoreWish>& wishes) {
  std::vector<int> every(machine.cores.size());
  std::iota(every.begin(), every.end(), 0);
  Deal whole(machine, every, wishes);
  whole.share_beside();
  std::vector<size_t> out;
  for (size_t beside : whole.count()) out.push_back(beside > 0 ? std::min(beside, even) : even);
  return out;
}

// More ranks than cores: each on the core that is nearest and least used.
void double_up(const Deal& deal, const std::vector<int>& allowed, std::vector<CoreShare>& shares) {
  std::vector<int> users(allowed.size(), 0);
  for (size_t r = 0; r < shares.size(); ++r) {
    size_t best = 0;
    for (size_t i = 1; i < users.size(); ++i)
      if (std::make_pair(deal.distance_of(r, i), users[i]) <
          std::make_pair(deal.distance_of(r, best), users[best]))
        best = i;
    ++users[best];
    shares[r].cores.push_back(allowed[best]);
    shares[r].distance = deal.distance_of(r, best);
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
    double_up(deal, allowed, shares);
    return shares;
  }
  deal.share_beside();
  deal.top_up(targets(machine, allowed.size() / wishes.size(), wishes));
  const std::vector<int> owners = deal.owners();
  for (size_t i = 0; i < allowed.size(); ++i) {
    if (owners[i] == unset) continue;
    const auto r = static_cast<size_t>(owners[i]);
    shares[r].cores.push_back(allowed[i]);
    shares[r].distance = std::max(shares[r].distance, deal.distance_of(r, i));
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
