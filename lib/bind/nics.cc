#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>
#include <tuple>

#include "bind/parts.h"

namespace trainlaunch {
namespace {

constexpr int unset = -1;
constexpr uint16_t pci_cisco = 0x1137;

// PIX and PXB are one class: both stay below a switch, which is what peer-to-peer needs.
int tier(Level level) { return level <= Level::pxb ? 0 : static_cast<int>(level) - 1; }

int nearest_tier(const Machine& m, int nic, const std::vector<int>& gpus) {
  int best = 4;
  for (int g : gpus)
    best = std::min(best, tier(m.near[static_cast<size_t>(g)][static_cast<size_t>(nic)].level));
  return best;
}

std::vector<int> all_gpus(const Machine& m) {
  std::vector<int> out(m.gpus.size());
  std::iota(out.begin(), out.end(), 0);
  return out;
}

// The rate that the others are measured by: of the fastest port below a GPU's switch, if any is
// used; a faster one elsewhere is the node's way to storage.
double top_rate(const Machine& m, const std::vector<NicChoice>& choice) {
  const std::vector<int> gpus = all_gpus(m);
  double beside = 0, top = 0;
  for (size_t n = 0; n < m.nics.size(); ++n) {
    if (!choice[n].used) continue;
    top = std::max(top, m.nics[n].rate_gbps);
    if (nearest_tier(m, static_cast<int>(n), gpus) == 0)
      beside = std::max(beside, m.nics[n].rate_gbps);
  }
  return beside > 0 ? beside : top;
}

// As the kernel's driver names the one device of two ports that are bonded for RoCE.
bool is_bond(const Nic& nic) { return nic.name.find("bond") != std::string::npos; }

// Drops ports that are not like the others: of another network, or slower. Slow ones may stay if
// they are below a GPU's own switch and not much slower: the way around would cost more.
void drop_unlike(const Machine& m, const std::vector<int>& gpus, std::vector<NicChoice>& choice) {
  std::array<int, 5> beside{}, all{};
  for (size_t n = 0; n < m.nics.size(); ++n) {
    if (!choice[n].used) continue;
    const auto layer = static_cast<size_t>(m.nics[n].link_layer);
    ++all[layer];
    if (nearest_tier(m, static_cast<int>(n), gpus) == 0) ++beside[layer];
  }
  // The network of most ports below a GPU's switch; failing that InfiniBand and its like, then
  // what there is most of.
  const auto better = [&](size_t a, size_t b) {
    const auto ethernet = static_cast<size_t>(LinkLayer::ethernet);
    return std::make_tuple(beside[a], all[a] > 0 && a != ethernet, all[a]) >
           std::make_tuple(beside[b], all[b] > 0 && b != ethernet, all[b]);
  };
  size_t layer = 0;
  for (size_t l = 1; l < all.size(); ++l)
    if (better(l, layer)) layer = l;
  for (size_t n = 0; n < m.nics.size(); ++n) {
    const Nic& nic = m.nics[n];
    if (choice[n].used && static_cast<size_t>(nic.link_layer) != layer)
      choice[n] = {false, std::string(name_of(nic.link_layer)) + " among " +
                              name_of(static_cast<LinkLayer>(layer))};
  }
  const double top = top_rate(m, choice);
  for (size_t n = 0; n < m.nics.size(); ++n) {
    const Nic& nic = m.nics[n];
    if (!choice[n].used || nic.rate_gbps == 0 || nic.rate_gbps >= top) continue;
    const bool beside_gpu = nearest_tier(m, static_cast<int>(n), gpus) == 0;
    if (beside_gpu && nic.rate_gbps * 2 >= top) continue;
    choice[n] = {false, gbps(nic.rate_gbps) + " among " + gbps(top)};
  }
}

// Keeps what is nearest to some GPU of the step. Where GPUs have ports below their own switch, a
// GPU without one (its port is dead, or there is one for two GPUs) uses those of its neighbours
// rather than one that is below no GPU's switch: that one is for storage or management, unless
// the site names the ports to use.
void drop_far(const Machine& m, const std::vector<int>& gpus, const Policy& policy,
              std::vector<NicChoice>& choice) {
  const std::vector<int> every = all_gpus(m);
  std::vector<bool> keep(m.nics.size(), false), below_switch(m.nics.size(), false);
  std::vector<bool> as_near(m.nics.size(), false);
  for (size_t n = 0; n < m.nics.size(); ++n)
    below_switch[n] =
        !policy.nic_include.empty() || nearest_tier(m, static_cast<int>(n), every) == 0;
  Level others = Level::sys;
  for (int g : gpus) {
    const auto& row = m.near[static_cast<size_t>(g)];
    std::pair<int, bool> best{4, true};
    const auto rank = [&](size_t n) {
      return std::make_pair(tier(row[n].level), !below_switch[n]);
    };
    for (size_t n = 0; n < m.nics.size(); ++n)
      if (choice[n].used) best = std::min(best, rank(n));
    for (size_t n = 0; n < m.nics.size(); ++n) {
      if (!choice[n].used) continue;
      as_near[n] = as_near[n] || rank(n).first == best.first;
      if (rank(n) != best) continue;
      keep[n] = true;
      others = std::min(others, row[n].level);
    }
  }
  for (size_t n = 0; n < m.nics.size(); ++n) {
    if (!choice[n].used || keep[n]) continue;
    if (as_near[n]) {
      choice[n] = {false, "below no GPU's switch, as others are: taken for storage or management"};
      choice[n].as_near = true;
      continue;
    }
    Level nearest = Level::sys;
    for (int g : gpus) nearest = std::min(nearest, m.near[static_cast<size_t>(g)][n].level);
    choice[n] = {false, std::string("farther from every GPU than others: ") + name_of(nearest) +
                            ", they are " + name_of(others)};
  }
}

// Drops functions that are parts of another port: virtual ones where the machine's own ports can be
// used, and members of a bond.
void drop_parts(const Machine& m, std::vector<NicChoice>& choice) {
  bool physical = false;
  for (size_t n = 0; n < m.nics.size(); ++n)
    physical = physical || (choice[n].used && !m.nics[n].virtual_function);
  for (size_t n = 0; n < m.nics.size(); ++n) {
    const Nic& nic = m.nics[n];
    if (!choice[n].used) continue;
    if (nic.virtual_function && physical) {
      choice[n] = {false, "a virtual function of a port that is there itself"};
      continue;
    }
    for (const Nic& bond : m.nics) {
      const bool one_card = std::tie(bond.pci.domain, bond.pci.bus, bond.pci.device) ==
                            std::tie(nic.pci.domain, nic.pci.bus, nic.pci.device);
      if (is_bond(bond) && bond.active && !is_bond(nic) && one_card)
        choice[n] = {false, "a part of " + bond.name};
    }
  }
}

// NCCL reads no more of a list than this. Each GPU's first port comes before anyone's second.
void cut_list(const Machine& m, const std::vector<int>& gpus, std::vector<NicChoice>& choice) {
  constexpr size_t limit = 32;
  std::vector<size_t> order;
  std::vector<bool> taken(m.nics.size(), false);
  const auto take = [&](size_t n) {
    if (choice[n].used && !taken[n]) order.push_back(n);
    taken[n] = true;
  };
  const auto pairs = pair_nics(m, gpus, choice);
  size_t rounds = 0;
  for (const auto& nics : pairs) rounds = std::max(rounds, nics.size());
  for (size_t round = 0; round < rounds; ++round)
    for (const auto& nics : pairs)
      if (round < nics.size()) take(static_cast<size_t>(nics[round]));
  for (size_t n = 0; n < m.nics.size(); ++n) take(n);
  for (size_t i = limit; i < order.size(); ++i)
    choice[order[i]] = {false, "NCCL takes 32 ports, and others are nearer or come first", true};
}

Status take_listed(const Machine& m, const std::vector<std::string>& names,
                   std::vector<NicChoice>& choice) {
  for (NicChoice& c : choice) c = {false, "not in the list"};
  for (const std::string& name : names) {
    bool found = false;
    for (size_t n = 0; n < m.nics.size(); ++n)
      if (m.nics[n].name == name || to_string(m.nics[n]) == name) {
        choice[n] = {true, ""};
        found = true;
      }
    if (!found) return fail("no port '" + name + "' on this machine; `gpu-bind show` names them");
  }
  return {};
}

// The first of `patterns` that the port's name, alone or with its number, matches; or none.
const std::string* matching(const std::vector<std::string>& patterns, const Nic& nic) {
  const std::string with_port = nic.name + ':' + std::to_string(nic.port);
  for (const std::string& p : patterns)
    if (fnmatch(p.c_str(), nic.name.c_str(), 0) == 0 ||
        fnmatch(p.c_str(), with_port.c_str(), 0) == 0)
      return &p;
  return nullptr;
}

// Drops what the site does not want used.
void drop_unwanted(const Machine& m, const Policy& policy, std::vector<NicChoice>& choice) {
  for (size_t n = 0; n < m.nics.size(); ++n) {
    if (!choice[n].used) continue;
    if (const std::string* p = matching(policy.nic_exclude, m.nics[n]))
      choice[n] = {false, "the site excludes " + *p};
    else if (!policy.nic_include.empty() && !matching(policy.nic_include, m.nics[n]))
      choice[n] = {false, "not among the ports that the site includes"};
  }
}

// Matches GPUs with their nearest ports.
class Matching {
 public:
  Matching(const Machine& m, const std::vector<int>& gpus, const std::vector<NicChoice>& choice)
      : gpus_(gpus), candidates_(gpus.size()), users_(m.nics.size()), pairs_(gpus.size()) {
    std::vector<std::pair<Near, size_t>> nearest;
    for (size_t g = 0; g < gpus.size(); ++g) {
      const auto& row = m.near[static_cast<size_t>(gpus[g])];
      Near best{Level::sys, 1 << 20};
      for (size_t n = 0; n < row.size(); ++n)
        if (choice[n].used) best = std::min(best, row[n]);
      for (size_t n = 0; n < row.size(); ++n)
        if (choice[n].used && row[n] == best) candidates_[g].push_back(static_cast<int>(n));
      nearest.emplace_back(best, g);
    }
    std::sort(nearest.begin(), nearest.end());
    for (const auto& [near, g] : nearest) order_.push_back(g);
  }

  std::vector<std::vector<int>> run() {
    for (size_t capacity = 1; !all_have(1); ++capacity)
      for (size_t g : order_)
        if (pairs_[g].empty() && !candidates_[g].empty()) give(g, capacity);
    deal_spare();
    for (auto& p : pairs_) std::sort(p.begin(), p.end());
    return pairs_;
  }

 private:
  bool all_have(size_t count) const {
    for (size_t g = 0; g < gpus_.size(); ++g)
      if (!candidates_[g].empty() && pairs_[g].size() < count) return false;
    return true;
  }

  void take(size_t gpu, int nic) {
    pairs_[gpu].push_back(nic);
    users_[static_cast<size_t>(nic)].push_back(gpu);
  }
  void drop(size_t gpu, int nic) {
    std::erase(pairs_[gpu], nic);
    std::erase(users_[static_cast<size_t>(nic)], gpu);
  }

  // A free port if there is one; else one whose user can move (an augmenting path).
  bool give(size_t gpu, size_t capacity) {
    std::set<int> seen;
    return give(gpu, capacity, seen);
  }
  bool give(size_t gpu, size_t capacity, std::set<int>& seen) {
    for (int n : candidates_[gpu])
      if (!seen.contains(n) && users_[static_cast<size_t>(n)].size() < capacity) {
        take(gpu, n);
        return true;
      }
    for (int n : candidates_[gpu]) {
      if (!seen.insert(n).second) continue;
      const std::vector<size_t> users = users_[static_cast<size_t>(n)];
      for (size_t other : users) {
        if (other == gpu) continue;
        drop(other, n);
        if (give(other, capacity, seen)) {
          take(gpu, n);
          return true;
        }
        take(other, n);
      }
    }
    return false;
  }

  // Ports that idle are dealt in whole rounds among the GPUs that compete for them, so that ranks
  // stay equal.
  void deal_spare() {
    for (const std::vector<size_t>& group : groups()) {
      for (bool whole = true; whole;) {
        const auto before = std::make_pair(pairs_, users_);
        for (size_t g : group) {
          const auto idle = std::find_if(candidates_[g].begin(), candidates_[g].end(), [&](int n) {
            return users_[static_cast<size_t>(n)].empty();
          });
          if (idle == candidates_[g].end())
            whole = false;
          else
            take(g, *idle);
        }
        if (!whole) std::tie(pairs_, users_) = before;
      }
    }
  }

  // GPUs that have a candidate in common, directly or through others.
  std::vector<std::vector<size_t>> groups() const {
    std::vector<int> group(gpus_.size(), unset);
    std::vector<std::vector<size_t>> out;
    for (size_t first = 0; first < gpus_.size(); ++first) {
      if (group[first] != unset || candidates_[first].empty()) continue;
      std::set<int> nics;
      std::vector<size_t> members;
      for (std::vector<size_t> todo{first}; !todo.empty();) {
        const size_t g = todo.back();
        todo.pop_back();
        if (group[g] != unset) continue;
        group[g] = static_cast<int>(out.size());
        members.push_back(g);
        nics.insert(candidates_[g].begin(), candidates_[g].end());
        for (size_t h = 0; h < gpus_.size(); ++h)
          if (group[h] == unset && std::any_of(candidates_[h].begin(), candidates_[h].end(),
                                               [&](int n) { return nics.contains(n); }))
            todo.push_back(h);
      }
      std::sort(members.begin(), members.end());
      out.push_back(std::move(members));
    }
    return out;
  }

  const std::vector<int>& gpus_;
  std::vector<size_t> order_;                 // who is nearest to a port comes first
  std::vector<std::vector<int>> candidates_;  // [gpu], ascending
  std::vector<std::vector<size_t>> users_;    // [nic]
  std::vector<std::vector<int>> pairs_;       // [gpu]
};

}  // namespace

std::string gbps(double rate) { return std::to_string(std::lround(rate)) + " Gb/s"; }

Result<std::vector<NicChoice>> choose_nics(const Machine& m, const std::vector<int>& gpus,
                                           const Policy& policy) {
  std::vector<NicChoice> choice(m.nics.size(), NicChoice{true, ""});
  if (policy.gpu == GpuMode::off || policy.nic == NicMode::off) {
    for (NicChoice& c : choice) c = {false, "not asked for"};
    return choice;
  }
  if (policy.nic == NicMode::list) {
    if (auto s = take_listed(m, policy.nics, choice); !s) return forward(s);
    return choice;
  }
  for (size_t n = 0; n < m.nics.size(); ++n) {
    const Nic& nic = m.nics[n];
    if (!nic.active)
      choice[n] = {false, "its port is down"};
    else if (nic.opens == false)
      choice[n] = {false, "its device below /dev/infiniband cannot be opened"};
    else if (nic.vendor == pci_cisco)
      choice[n] = {false, "usNIC: no remote memory access"};
  }
  drop_unwanted(m, policy, choice);
  if (policy.nic != NicMode::all) {
    drop_parts(m, choice);
    drop_unlike(m, gpus, choice);
    if (!gpus.empty()) drop_far(m, gpus, policy, choice);
  }
  if (policy.nic == NicMode::closest && !gpus.empty()) {
    std::set<int> paired;
    for (const auto& nics : pair_nics(m, gpus, choice)) paired.insert(nics.begin(), nics.end());
    for (size_t n = 0; n < m.nics.size(); ++n)
      if (choice[n].used && !paired.contains(static_cast<int>(n)))
        choice[n] = {false, "nearest to no GPU"};
  }
  cut_list(m, gpus, choice);
  return choice;
}

std::vector<std::vector<int>> pair_nics(const Machine& m, const std::vector<int>& gpus,
                                        const std::vector<NicChoice>& nics) {
  return Matching(m, gpus, nics).run();
}

}  // namespace trainlaunch
