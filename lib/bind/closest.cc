#include <algorithm>
#include <limits>
#include <map>

#include "bind/parts.h"

namespace trainlaunch {
namespace {

constexpr int unset = -1;
using Costs = std::vector<std::vector<long>>;  // [rank][GPU]

// Gives each rank one GPU, at the least sum of costs. A rank is added by the cheapest chain of
// moves: it takes a GPU, whose rank takes another, and so on (shortest augmenting paths, found with
// Bellman and Ford's method over the GPUs).
class Assignment {
 public:
  Assignment(const Costs& costs, size_t gpus)
      : cost_(costs), gpus_(gpus), owner_(costs.size(), unset), load_(gpus, 0) {}

  std::vector<int> run() {
    const size_t ranks = owner_.size();
    // Every GPU as often as all can be, and then some once more.
    size_t r = 0;
    for (size_t capacity = std::max<size_t>(1, ranks / gpus_); r < ranks; ++capacity)
      for (; r < ranks && r < capacity * gpus_; ++r) add(r, capacity);
    return owner_;
  }

 private:
  struct Move {
    long cost = std::numeric_limits<long>::max() / 4;
    int rank = unset;
  };

  // The cheapest rank to move from each GPU to each other one.
  std::vector<std::vector<Move>> moves() const {
    std::vector<std::vector<Move>> best(gpus_, std::vector<Move>(gpus_));
    for (size_t r = 0; r < owner_.size(); ++r) {
      if (owner_[r] == unset) continue;
      const auto from = static_cast<size_t>(owner_[r]);
      for (size_t to = 0; to < gpus_; ++to) {
        const long cost = cost_[r][to] - cost_[r][from];
        if (to != from && cost < best[from][to].cost) best[from][to] = {cost, static_cast<int>(r)};
      }
    }
    return best;
  }

  void add(size_t rank, size_t capacity) {
    const auto move = moves();
    std::vector<Move> reach(gpus_);
    std::vector<int> via(gpus_, unset);
    for (size_t g = 0; g < gpus_; ++g) reach[g] = {cost_[rank][g], static_cast<int>(rank)};
    for (bool better = true; better;) {
      better = false;
      for (size_t from = 0; from < gpus_; ++from)
        for (size_t to = 0; to < gpus_; ++to) {
          const long cost = reach[from].cost + move[from][to].cost;
          if (move[from][to].rank == unset || cost >= reach[to].cost) continue;
          reach[to] = {cost, move[from][to].rank};
          via[to] = static_cast<int>(from);
          better = true;
        }
    }
    size_t end = gpus_;
    for (size_t g = 0; g < gpus_; ++g)
      if (load_[g] < capacity && (end == gpus_ || reach[g].cost < reach[end].cost)) end = g;
    ++load_[end];
    for (int g = static_cast<int>(end); g != unset; g = via[static_cast<size_t>(g)])
      owner_[static_cast<size_t>(reach[static_cast<size_t>(g)].rank)] = g;
  }

  const Costs& cost_;
  size_t gpus_;
  std::vector<int> owner_;    // of each rank its GPU
  std::vector<size_t> load_;  // of each GPU its ranks
};

// The mean distance of the rank's cores, in thousandths; where that is equal, the place in
// `preference` decides.
Costs costs_of(const Machine& m, const std::vector<CoreShare>& ranks, const std::vector<int>& gpus,
               const std::vector<int>& preference) {
  std::vector<CoreWish> wishes;
  std::vector<long> place;
  for (int g : gpus) {
    wishes.push_back(wish_for(m, {g}));
    place.push_back(std::find(preference.begin(), preference.end(), g) - preference.begin());
  }
  Costs costs;
  for (const CoreShare& r : ranks) {
    std::vector<long>& row = costs.emplace_back();
    for (size_t g = 0; g < gpus.size(); ++g) {
      long sum = 0;
      for (int c : r.cores) sum += distance(m.cores[static_cast<size_t>(c)], wishes[g]);
      const long cores = std::max<long>(1, static_cast<long>(r.cores.size()));
      row.push_back(sum * 1000 / cores * static_cast<long>(gpus.size() + 1) + place[g]);
    }
  }
  return costs;
}

}  // namespace

std::vector<std::vector<int>> closest_gpus(const Machine& m, const std::vector<CoreShare>& ranks,
                                           const std::vector<int>& gpus,
                                           const std::vector<std::vector<int>>& pairs) {
  std::vector<std::vector<int>> out(ranks.size());
  if (gpus.empty() || ranks.empty()) return out;
  const Costs costs = costs_of(m, ranks, gpus, spread_gpus(m, gpus, pairs));
  // A rank with several GPUs stands there several times.
  const size_t each = std::max<size_t>(1, gpus.size() / ranks.size());
  Costs repeated;
  for (const auto& row : costs) repeated.insert(repeated.end(), each, row);
  const std::vector<int> owner = Assignment(repeated, gpus.size()).run();

  // Ranks to which all GPUs are equally near take theirs in order.
  std::map<std::vector<long>, std::vector<size_t>> alike;
  for (size_t r = 0; r < ranks.size(); ++r) alike[costs[r]].push_back(r);
  for (const auto& [key, members] : alike) {
    std::vector<int> theirs;
    for (size_t r : members)
      for (size_t i = 0; i < each; ++i)
        theirs.push_back(gpus[static_cast<size_t>(owner[r * each + i])]);
    std::sort(theirs.begin(), theirs.end());
    auto next = theirs.begin();
    for (size_t r : members)
      for (size_t i = 0; i < each; ++i) out[r].push_back(*next++);
  }
  return out;
}

}  // namespace trainlaunch
