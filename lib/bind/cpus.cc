#include <algorithm>
#include <map>
#include <set>

#include "bind/planner.h"

namespace trainlaunch {

std::vector<int> Planner::threads(int c) const {
  std::vector<int> out;
  for (int cpu : core(c).cpus)
    if (allowed_.test(static_cast<size_t>(cpu)) && !(p_.one_thread && !out.empty()))
      out.push_back(cpu);
  return out;
}

void Planner::leave_cpus(RankPlan& r, const std::string& why) {
  r.keep_cpus = true;
  r.cpus = allowed_;
  r.why.push_back("CPUs left alone: " + why);
}

std::string Planner::why_leave_cpus(const RankPlan& r) const {
  if (a_.asked.cpu) return "--cpu-bind was given";
  if (!cores_known_) return "the step's cores are not known";
  if (p_.cpu == CpuMode::off) return "cpu off";
  if (a_.asked.gpu) return "its GPU is Slurm's choice";
  if (r.spans) return apart();
  if (r.gpus.empty() && plan_.ranks.size() == 1) return "one rank without a GPU";
  return "";
}

void Planner::give_cpus() {
  std::vector<size_t> ranks;
  for (size_t i = 0; i < plan_.ranks.size(); ++i) {
    const std::string why = why_leave_cpus(plan_.ranks[i]);
    if (why.empty())
      ranks.push_back(i);
    else
      leave_cpus(plan_.ranks[i], why);
  }
  if (ranks.empty()) return;
  if (!split_.empty())
    give_split(ranks);
  else if (p_.cpu == CpuMode::numa)
    give_nodes(ranks);
  else
    give_shares(ranks);
  tell_idle_cores();
}

// All that the step has in the memory node of each rank's GPU.
void Planner::give_nodes(const std::vector<size_t>& ranks) {
  for (size_t i : ranks) {
    const CoreWish wish = wish_for(m_, plan_.ranks[i].gpus);
    CoreShare share{{}, 3};
    for (int c : cores_) share.distance = std::min(share.distance, distance(core(c), wish));
    // The node is one place: what stands beside the GPU in it is no nearer than the rest.
    if (wish.numa >= 0) share.distance = std::max(share.distance, 1);
    for (int c : cores_)
      if (distance(core(c), wish) <= share.distance) share.cores.push_back(c);
    take_cores(plan_.ranks[i], share, "all that the step has there");
  }
}

void Planner::give_shares(const std::vector<size_t>& ranks) {
  std::vector<CoreWish> wishes;
  for (size_t i : ranks) wishes.push_back(wish_for(m_, plan_.ranks[i].gpus));
  const auto shares = deal_cores(m_, cores_, wishes);
  bool doubled = false;
  std::vector<size_t> one_core;
  for (size_t k = 0; k < ranks.size(); ++k) {
    take_cores(plan_.ranks[ranks[k]], shares[k],
               shares[k].shared ? "shared with other ranks" : "its own share");
    doubled = doubled || shares[k].shared;
    if (shares[k].cores.size() == 1) one_core.push_back(ranks[k]);
  }
  tell_cores(doubled, one_core);
}

// The cores that `closest` chose the GPU for; with cpu=numa all of their memory nodes.
void Planner::give_split(const std::vector<size_t>& ranks) {
  bool doubled = false;
  std::vector<size_t> one_core;
  for (size_t i : ranks) {
    RankPlan& r = plan_.ranks[i];
    CoreShare share = split_[i];
    std::string how = share.shared ? "shared with other ranks" : "its part of the step's, in order";
    if (p_.cpu == CpuMode::numa) {
      std::set<int> nodes;
      for (int c : share.cores) nodes.insert(core(c).numa);
      share.cores.clear();
      for (int c : cores_)
        if (nodes.contains(core(c).numa)) share.cores.push_back(c);
      how = "all that the step has there";
    }
    const CoreWish wish = wish_for(m_, r.gpus);
    for (int c : share.cores) share.distance = std::max(share.distance, distance(core(c), wish));
    take_cores(r, share, how);
    doubled = doubled || share.shared;
    if (share.cores.size() == 1) one_core.push_back(i);
  }
  tell_cores(doubled, one_core);
}

// In words: how far the farthest of these cores is from the rank's GPUs.
std::string Planner::where_is(const CoreShare& share, const CoreWish& wish) const {
  static const char* const near[] = {"beside the GPU", "in the GPU's memory node",
                                     "in the GPU's package"};
  if (share.distance < 3) return near[share.distance];
  bool packages = wish.package >= 0, nodes = wish.numa >= 0;
  for (int c : share.cores) {
    packages = packages && core(c).package >= 0;
    nodes = nodes && core(c).numa >= 0;
  }
  return packages ? "in another package than the GPU"
         : nodes  ? "in another memory node than the GPU"
                  : "away from the GPU";
}

void Planner::take_cores(RankPlan& r, const CoreShare& share, const std::string& how) {
  r.cpus.reset();
  for (int c : share.cores)
    for (int cpu : threads(c)) r.cpus.set(static_cast<size_t>(cpu));
  const int far = share.distance;
  const CoreWish wish = wish_for(m_, r.gpus);
  const bool some = far == 3 && std::any_of(share.cores.begin(), share.cores.end(),
                                            [&](int c) { return distance(core(c), wish) < far; });
  const std::string where = where_is(share, wish);
  std::string why =
      "CPUs " + to_list(r.cpus) + ": " + count_of(share.cores.size(), "core", "cores");
  if (wish.known) why += (some ? ", some " : " ") + where;
  why += ", " + how;
  const bool missing = far >= 2 && !r.gpus.empty();
  if (missing && split_.empty()) why += "; the step has no free core nearer";
  r.why.push_back(why);
  if (!missing || warned("cores-far")) return;
  if (split_.empty())
    warn("cores-far",
         "the step has too few cores near " + name(r.gpus.front()) + ": its rank runs " +
             (some ? "in part " : "") + where,
         "--exclusive, or --gres-flags=enforce-binding so that cores come with their GPUs");
  else
    warn("cores-far",
         "no GPU of the step is near all cores of some ranks: " + name(r.gpus.front()) +
             " serves CPUs " + to_list(r.cpus),
         "--gpu-bind-policy=auto, which gives ranks the cores near their GPUs");
}

void Planner::give_memory() {
  if (p_.mem == MemMode::off) return;
  plan_.mem = p_.mem;
  for (RankPlan& r : plan_.ranks) {
    const auto leave = [&](const char* why) {
      r.why.push_back(std::string("memory left alone: ") + why);
    };
    if (a_.asked.mem)
      leave("--mem-bind was given");
    else if (!cores_known_)
      leave("the step's cores are not known");
    else if (a_.asked.gpu)
      leave("its GPU is Slurm's choice");
    else if (r.spans)
      leave(apart());
    else if (m_.numa.empty())
      leave("the machine names no memory nodes");
    else if (m_.numa.size() == 1)
      leave("there is one memory node");
    else if (!r.gpus.empty() && !m_.knows(gpu(r.gpus.front()).place))
      leave("which memory node its GPU is on is not known");
    else if (const int node = memory_node(r); node < 0)
      leave(r.gpus.empty() ? "its CPUs are in several memory nodes"
                           : "its CPUs are not in one memory node with its GPU");
    else {
      r.mem = node;
      r.why.push_back("memory node " + std::to_string(node) +
                      (r.gpus.empty() ? ": where its CPUs are" : ": where its GPU is"));
    }
  }
}

int Planner::memory_node(const RankPlan& r) const {
  const int cpus = m_.numa_of(r.cpus);
  if (r.gpus.empty()) return r.keep_cpus ? -1 : cpus;
  const int node = gpu(r.gpus.front()).place.numa;
  return r.keep_cpus || cpus == node ? node : -1;
}

// A rank without a GPU uses the ports of the memory node that it runs in, the least used first.
void Planner::give_ports_by_cpus() {
  std::map<int, size_t> users;
  for (RankPlan& r : plan_.ranks) {
    if (!r.gpus.empty() || r.keep_cpus) continue;
    const int node = m_.numa_of(r.cpus);
    int best = -1;
    for (int n : plan_.used_nics())
      if (node >= 0 && nic(n).place.numa == node && (best < 0 || users[n] < users[best])) best = n;
    if (best < 0) continue;
    ++users[best];
    r.nics = {best};
    r.why.push_back("port " + to_string(nic(best)) + ": in memory node " + std::to_string(node) +
                    ", where its CPUs are");
  }
}

}  // namespace trainlaunch
