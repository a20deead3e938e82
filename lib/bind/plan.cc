#include <algorithm>
#include <map>
#include <set>

#include "bind/planner.h"

namespace trainlaunch {

std::string count_of(size_t n, const char* one, const char* many) {
  return std::to_string(n) + ' ' + (n == 1 ? one : many);
}

Result<Plan> Planner::run() {
  if (auto s = take_allocation(); !s) return forward(s);
  auto nics = choose_nics(m_, plan_.gpus, p_);
  if (!nics) return forward(nics);
  plan_.nics = std::move(*nics);
  if (p_.gpu == GpuMode::off) {
    for (RankPlan& r : plan_.ranks) leave_cpus(r, "policy off");
    return std::move(plan_);
  }
  plan_.binds_gpus = !a_.asked.gpu && !plan_.gpus.empty();
  if (plan_.binds_gpus)
    if (auto s = give_gpus(); !s) return forward(s);
  give_cpus();
  give_memory();
  give_ports_by_cpus();
  see_gpus();
  tell_gpus();
  tell_ports();
  tell_places();
  return std::move(plan_);
}

Status Planner::take_allocation() {
  const int have = static_cast<int>(m_.gpus.size());
  if (a_.gpus) {
    for (int g : *a_.gpus)
      if (g < 0 || g >= have)
        return fail("the step has GPU " + std::to_string(g) + ", but this machine has " +
                    (have == 0 ? "none" : "only GPUs 0-" + std::to_string(have - 1)));
    plan_.gpus = *a_.gpus;
    std::sort(plan_.gpus.begin(), plan_.gpus.end());
    plan_.gpus.erase(std::unique(plan_.gpus.begin(), plan_.gpus.end()), plan_.gpus.end());
  } else {
    for (int g = 0; g < have; ++g) plan_.gpus.push_back(g);
  }
  int ranks = a_.ranks;
  if (ranks == 0) ranks = std::max<int>(1, static_cast<int>(plan_.gpus.size()));
  if (ranks < 0 || ranks > max_local_ranks)
    return fail(std::to_string(ranks) + " ranks on one node; 1 to " +
                std::to_string(max_local_ranks) + " can be placed");
  plan_.ranks.resize(static_cast<size_t>(ranks));
  take_cores_of_step();
  return {};
}

void Planner::take_cores_of_step() {
  const char* fix =
      "make CPUs, Sockets, CoresPerSocket and ThreadsPerCore in slurm.conf match `slurmd -C`";
  allowed_ = m_.allowed;
  // What is left alone in any case is not missed.
  const auto unknown = [&](std::string message, const char* mend) {
    cores_known_ = false;
    const bool cpus = p_.cpu != CpuMode::off && !a_.asked.cpu;
    const bool mems = p_.mem != MemMode::off && !a_.asked.mem;
    if (cpus || mems || p_.gpu == GpuMode::closest)
      warn("cores-unknown", std::move(message) + ": CPUs and memory are left alone", mend);
  };
  if (m_.cores.empty())
    return unknown("the topology names no CPUs", "use lstopo --of xml on the machine itself");
  if (a_.cores) {
    CpuSet of_step;
    for (int c : *a_.cores) {
      if (c < 0 || c >= static_cast<int>(m_.cores.size()))
        return unknown("the step has core " + std::to_string(c) + ", but this machine has " +
                           count_of(m_.cores.size(), "core", "cores"),
                       fix);
      for (int cpu : core(c).cpus) of_step.set(static_cast<size_t>(cpu));
    }
    allowed_ &= of_step;
  }
  for (size_t c = 0; c < m_.cores.size(); ++c)
    if (!threads(static_cast<int>(c)).empty()) cores_.push_back(static_cast<int>(c));
  if (cores_.empty()) unknown("this process may use none of the step's cores", fix);
}

Result<std::vector<std::vector<int>>> Planner::mapped_gpus() {
  if (p_.map.empty()) return fail("policy map names no GPU", exit_code::usage);
  const int have = static_cast<int>(plan_.gpus.size());
  std::vector<std::vector<int>> out;
  for (size_t i = 0; i < plan_.ranks.size(); ++i) {
    const int k = p_.map[i % p_.map.size()];
    if (k < 0 || k >= have)
      return fail("policy map names GPU " + std::to_string(k) + ", but the step has " +
                      (have == 1 ? "GPU 0 only" : "GPUs 0-" + std::to_string(have - 1)) +
                      "; its GPUs count from 0",
                  exit_code::usage);
    out.push_back({plan_.gpus[static_cast<size_t>(k)]});
  }
  return out;
}

Result<std::vector<std::vector<int>>> Planner::choose_gpus(
    const std::vector<std::vector<int>>& pairs) {
  if (p_.gpu == GpuMode::map) return mapped_gpus();
  if (!closest()) return deal_gpus(m_, static_cast<int>(plan_.ranks.size()), plan_.gpus, pairs);
  split_ = split_cores(cores_, plan_.ranks.size());
  return closest_gpus(m_, split_, plan_.gpus, pairs);
}

Status Planner::give_gpus() {
  const auto pairs = pair_nics(m_, plan_.gpus, plan_.nics);
  std::map<int, std::vector<int>> nics_of;
  for (size_t i = 0; i < plan_.gpus.size(); ++i) nics_of[plan_.gpus[i]] = pairs[i];
  auto dealt = choose_gpus(pairs);
  if (!dealt) return forward(dealt);
  for (size_t i = 0; i < plan_.ranks.size(); ++i) {
    RankPlan& r = plan_.ranks[i];
    r.gpus = (*dealt)[i];
    std::set<int> nics, nodes;
    bool apart = false;  // their CPUs
    for (int g : r.gpus) {
      nodes.insert(gpu(g).place.numa);
      apart = apart || gpu(g).place.cpus != gpu(r.gpus.front()).place.cpus;
      r.why.push_back(name(g) + (gpu(g).place.numa >= 0
                                     ? ": memory node " + std::to_string(gpu(g).place.numa)
                                     : ": memory node unknown"));
      for (int n : nics_of[g]) {
        nics.insert(n);
        const Level level = m_.near[static_cast<size_t>(g)][static_cast<size_t>(n)].level;
        if (!r.gpu_nic || level > *r.gpu_nic) r.gpu_nic = level;
        r.why.push_back(name(g) + " with port " + to_string(nic(n)) + ": " + name_of(level) +
                        ", the nearest that can be used");
      }
    }
    r.nics.assign(nics.begin(), nics.end());
    // Several GPUs, and not one known memory node for all of them.
    const bool several = nodes.size() > 1 || nodes.contains(-1);
    r.spans = r.gpus.size() > 1 && (m_.numa.empty() ? apart : m_.numa.size() > 1 && several);
  }
  return {};
}

// One whole GPU per rank: every rank sees all, its own at its local rank's place.
void Planner::see_gpus() {
  if (!plan_.binds_gpus) return;
  std::set<int> own;
  bool one_each = true, instances = false;
  for (const RankPlan& r : plan_.ranks)
    one_each = one_each && r.gpus.size() == 1 && own.insert(r.gpus.front()).second;
  for (int g : plan_.gpus) instances = instances || !gpu(g).mig.empty();
  if (p_.visible == Visible::own || (p_.visible == Visible::automatic && (!one_each || instances)))
    return;
  if (instances) {
    warn("visible-mig",
         "a CUDA process uses the first MIG instance that it sees and no other: each rank sees "
         "its own only",
         "--gpu-bind-visible=own");
    return;
  }
  if (!one_each) {
    plan_.gpu_order = plan_.gpus;
    return;
  }
  for (const RankPlan& r : plan_.ranks) plan_.gpu_order.push_back(r.gpus.front());
  for (int g : plan_.gpus)
    if (!own.contains(g)) plan_.gpu_order.push_back(g);
}

std::vector<int> Plan::used_nics() const {
  std::vector<int> out;
  for (size_t n = 0; n < nics.size(); ++n)
    if (nics[n].used) out.push_back(static_cast<int>(n));
  return out;
}

Result<Plan> plan(const Machine& machine, const Allocation& allocation, const Policy& policy) {
  return Planner(machine, allocation, policy).run();
}

}  // namespace trainlaunch
