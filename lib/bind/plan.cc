#include <algorithm>
#include <map>
#include <set>

#include "bind/parts.h"

namespace trainlaunch {
namespace {

std::string count(size_t n, const char* one, const char* many) {
  return std::to_string(n) + ' ' + (n == 1 ? one : many);
}

class Planner {
 public:
  Planner(const Machine& m, const Allocation& a, const Policy& p) : m_(m), a_(a), p_(p) {}

  Result<Plan> run() {
    if (auto s = take_allocation(); !s) return forward(s);
    auto nics = choose_nics(m_, plan_.gpus, p_);
    if (!nics) return forward(nics);
    plan_.nics = std::move(*nics);
    if (p_.gpu == GpuMode::off) {
      for (RankPlan& r : plan_.ranks) leave_cpus(r, "policy off");
      return std::move(plan_);
    }
    const bool ours = !a_.asked.gpu;
    plan_.binds_gpus = ours && !plan_.gpus.empty();
    if (plan_.binds_gpus) {
      give_gpus();
    } else if (!plan_.gpus.empty()) {
      warn("gpu-bind-asked",
           "GPUs are bound to tasks by Slurm, so that ranks cannot be placed by "
           "their GPU and peer-to-peer between GPUs may be off",
           "leave out --gpu-bind and --gpus-per-task, or give --gpu-bind=none");
    }
    give_cpus();
    give_memory();
    see_gpus();
    look_at_ports();
    look_at_places();
    return std::move(plan_);
  }

 private:
  const Gpu& gpu(int g) const { return m_.gpus[static_cast<size_t>(g)]; }
  const Core& core(int c) const { return m_.cores[static_cast<size_t>(c)]; }
  std::string name(int g) const {
    std::string s = "GPU " + std::to_string(g) + ' ' + to_string(gpu(g).pci);
    if (gpu(g).partition) s += " partition " + std::to_string(*gpu(g).partition);
    return s;
  }
  void warn(const char* code, std::string message, std::string fix, bool quiet = false) {
    plan_.warnings.push_back({code, std::move(message), std::move(fix), quiet});
  }

  Status take_allocation() {
    const int have = static_cast<int>(m_.gpus.size());
    if (a_.gpus) {
      for (int g : *a_.gpus)
        if (g < 0 || g >= have)
          return fail("the step has GPU " + std::to_string(g) + ", but this machine has " +
                      (have == 0 ? "none" : "only GPUs 0-" + std::to_string(have - 1)));
      plan_.gpus = *a_.gpus;
    } else {
      for (int g = 0; g < have; ++g) plan_.gpus.push_back(g);
    }
    int ranks = a_.ranks;
    if (ranks == 0) ranks = std::max<int>(1, static_cast<int>(plan_.gpus.size()));
    if (ranks < 0 || ranks > max_local_ranks)
      return fail(std::to_string(ranks) + " ranks on one node; 1 to " +
                  std::to_string(max_local_ranks) + " can be placed");
    plan_.ranks.resize(static_cast<size_t>(ranks));

    allowed_ = m_.allowed;
    if (a_.cores) {
      CpuSet of_step;
      for (int c : *a_.cores) {
        if (c < 0 || c >= static_cast<int>(m_.cores.size())) {
          warn("cores-unknown",
               "the step has core " + std::to_string(c) + ", but this machine has " +
                   count(m_.cores.size(), "core", "cores") + ": CPUs and memory are left alone",
               "make CPUs, Sockets, CoresPerSocket and ThreadsPerCore in slurm.conf match `slurmd "
               "-C`");
          cores_known_ = false;
          break;
        }
        for (int cpu : core(c).cpus) of_step.set(static_cast<size_t>(cpu));
      }
      if (cores_known_) allowed_ &= of_step;
    }
    if (cores_known_ && allowed_.none()) {
      warn("cores-unknown",
           "this process may use none of the step's cores: CPUs and memory are "
           "left alone",
           "compare Slurm's core numbers with `gpu-bind show`");
      cores_known_ = false;
    }
    return {};
  }

  void give_gpus() {
    const auto pairs = pair_nics(m_, plan_.gpus, plan_.nics);
    std::map<int, std::vector<int>> nics_of;
    for (size_t i = 0; i < plan_.gpus.size(); ++i) nics_of[plan_.gpus[i]] = pairs[i];
    const auto dealt = deal_gpus(m_, static_cast<int>(plan_.ranks.size()), plan_.gpus, pairs);
    std::map<int, size_t> users;
    for (size_t i = 0; i < plan_.ranks.size(); ++i) {
      RankPlan& r = plan_.ranks[i];
      r.gpus = dealt[i];
      std::set<int> nics, nodes;
      for (int g : r.gpus) {
        ++users[g];
        nodes.insert(gpu(g).place.numa);
        for (int n : nics_of[g]) {
          nics.insert(n);
          const Level level = m_.near[static_cast<size_t>(g)][static_cast<size_t>(n)].level;
          if (!r.gpu_nic || level > *r.gpu_nic) r.gpu_nic = level;
          r.why.push_back(name(g) + " with port " + to_string(m_.nics[static_cast<size_t>(n)]) +
                          ": " + name_of(level) + ", the nearest that can be used");
        }
        r.why.push_back(name(g) + (gpu(g).place.numa >= 0
                                       ? ": memory node " + std::to_string(gpu(g).place.numa)
                                       : ": memory node unknown"));
      }
      r.nics.assign(nics.begin(), nics.end());
      // Several GPUs, and not one known memory node for all of them.
      r.spans = r.gpus.size() > 1 && m_.numa.size() > 1 && (nodes.size() > 1 || nodes.contains(-1));
    }
    tell_shares(users);
  }

  void tell_shares(const std::map<int, size_t>& users) {
    const size_t ranks = plan_.ranks.size(), gpus = plan_.gpus.size();
    if (ranks > gpus)
      warn("gpus-shared",
           count(ranks, "rank", "ranks") + " share " + count(gpus, "GPU", "GPUs") +
               ": right with MPS or shards, otherwise a mistake",
           "--ntasks-per-node=" + std::to_string(gpus) + " or more GPUs");
    if (users.size() < gpus)
      warn("gpus-idle",
           count(gpus - users.size(), "GPU", "GPUs") + " of the step " +
               (gpus - users.size() == 1 ? "has" : "have") + " no rank",
           "--ntasks-per-node=" + std::to_string(gpus));
    plan_.why.push_back(count(ranks, "rank", "ranks") + " on " + count(gpus, "GPU", "GPUs") +
                        ", in PCI order" + (ranks == gpus ? ": rank i on GPU i" : ""));
  }

  void leave_cpus(RankPlan& r, const std::string& why) {
    r.keep_cpus = true;
    r.cpus = allowed_;
    r.why.push_back("CPUs left alone: " + why);
  }

  // Beside every CPU of several memory nodes: the machine does not say where.
  bool is_unknown(const Place& place) const {
    return place.numa < 0 && m_.numa.size() > 1 && place.cpus == m_.cpus;
  }

  CoreWish wish_of(const RankPlan& r) const {
    CoreWish wish;
    for (int g : r.gpus) {
      const Place& place = gpu(g).place;
      if (is_unknown(place)) return {};
      wish.beside |= place.cpus;
      wish.numa = place.numa;
    }
    std::set<int> packages;
    for (const Core& c : m_.cores)
      if (wish.beside.test(static_cast<size_t>(c.cpus.front()))) packages.insert(c.package);
    if (packages.size() == 1) wish.package = *packages.begin();
    return wish;
  }

  void give_cpus() {
    std::vector<int> cores;
    for (size_t c = 0; c < m_.cores.size(); ++c)
      if (!threads(static_cast<int>(c)).empty()) cores.push_back(static_cast<int>(c));

    std::vector<size_t> ranks;
    std::vector<CoreWish> wishes;
    for (size_t i = 0; i < plan_.ranks.size(); ++i) {
      RankPlan& r = plan_.ranks[i];
      if (a_.asked.cpu)
        leave_cpus(r, "--cpu-bind was given");
      else if (!cores_known_)
        leave_cpus(r, "the step's cores are not known");
      else if (p_.cpu == CpuMode::off)
        leave_cpus(r, "cpu off");
      else if (a_.asked.gpu)
        leave_cpus(r, "its GPU is Slurm's choice");
      else if (r.spans)
        leave_cpus(r, "its GPUs are on several memory nodes");
      else if (r.gpus.empty() && plan_.ranks.size() == 1)
        leave_cpus(r, "one rank without a GPU");
      else {
        ranks.push_back(i);
        wishes.push_back(wish_of(r));
      }
    }
    if (p_.cpu == CpuMode::numa)
      give_nodes(cores, ranks, wishes);
    else
      give_shares(cores, ranks, wishes);
  }

  // What the step may use of a core.
  std::vector<int> threads(int c) const {
    std::vector<int> out;
    for (int cpu : core(c).cpus)
      if (allowed_.test(static_cast<size_t>(cpu)) && !(p_.one_thread && !out.empty()))
        out.push_back(cpu);
    return out;
  }

  void give_nodes(const std::vector<int>& cores, const std::vector<size_t>& ranks,
                  const std::vector<CoreWish>& wishes) {
    for (size_t k = 0; k < ranks.size(); ++k) {
      int best = 3;
      for (int c : cores) best = std::min(best, distance(core(c), wishes[k]));
      // The node is one place: what stands beside the GPU in it is no nearer than the rest.
      if (wishes[k].numa >= 0) best = std::max(best, 1);
      std::vector<int> mine;
      for (int c : cores)
        if (distance(core(c), wishes[k]) <= best) mine.push_back(c);
      take_cores(plan_.ranks[ranks[k]], mine, best, "all that the step has there");
    }
  }

  void give_shares(const std::vector<int>& cores, const std::vector<size_t>& ranks,
                   const std::vector<CoreWish>& wishes) {
    const auto shares = deal_cores(m_, cores, wishes);
    bool doubled = false;
    std::vector<size_t> one_core;
    for (size_t k = 0; k < ranks.size(); ++k) {
      const CoreShare& share = shares[k];
      take_cores(plan_.ranks[ranks[k]], share.cores, share.distance,
                 share.shared ? "shared with other ranks" : "its own share");
      doubled = doubled || share.shared;
      if (share.cores.size() == 1 && !plan_.ranks[ranks[k]].gpus.empty())
        one_core.push_back(ranks[k]);
    }
    if (doubled)
      warn("cores-few",
           count(ranks.size(), "rank", "ranks") + " share " + count(cores.size(), "core", "cores"),
           "--cpus-per-task");
    else if (!one_core.empty())
      warn("cores-one",
           count(one_core.size(), "rank has", "ranks have") +
               " one core for a GPU: too few for data loading and NCCL's threads",
           "--cpus-per-task", true);
  }

  void take_cores(RankPlan& r, const std::vector<int>& cores, int far, const std::string& how) {
    r.cpus.reset();
    for (int c : cores)
      for (int cpu : threads(c)) r.cpus.set(static_cast<size_t>(cpu));
    static const char* const where[] = {"beside the GPU", "in the GPU's memory node",
                                        "in the GPU's package", "in another package than the GPU"};
    std::string why = "CPUs " + to_list(r.cpus) + ": " + count(cores.size(), "core", "cores");
    if (wish_of(r).beside.any()) why += std::string(" ") + where[far];
    why += ", " + how;
    if (far >= 2) why += "; the step has no free core nearer";
    r.why.push_back(why);
    if (far < 2 || r.gpus.empty()) return;
    for (const Warning& w : plan_.warnings)
      if (w.code == "cores-far") return;
    warn(
        "cores-far",
        "the step has too few cores near " + name(r.gpus.front()) + ": its rank runs " + where[far],
        "--exclusive, or --gres-flags=enforce-binding so that cores come with their GPUs");
  }

  void give_memory() {
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
        leave("its GPUs are on several memory nodes");
      else if (m_.numa.size() < 2)
        leave("there is one memory node");
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

  int memory_node(const RankPlan& r) const {
    const int cpus = m_.numa_of(r.cpus);
    if (r.gpus.empty()) return r.keep_cpus ? -1 : cpus;
    const int node = gpu(r.gpus.front()).place.numa;
    return r.keep_cpus || cpus == node ? node : -1;
  }

  // One whole GPU per rank: every rank sees all, its own at its local rank's place.
  void see_gpus() {
    if (!plan_.binds_gpus) return;
    std::set<int> own;
    bool one_each = true;
    for (const RankPlan& r : plan_.ranks)
      one_each = one_each && r.gpus.size() == 1 && own.insert(r.gpus.front()).second;
    const bool ordered =
        p_.visible == Visible::ordered || (p_.visible == Visible::automatic && one_each);
    if (!ordered) return;
    if (!one_each) {
      plan_.gpu_order = plan_.gpus;
      return;
    }
    for (const RankPlan& r : plan_.ranks) plan_.gpu_order.push_back(r.gpus.front());
    for (int g : plan_.gpus)
      if (!own.contains(g)) plan_.gpu_order.push_back(g);
  }

  void look_at_ports() {
    for (size_t n = 0; n < m_.nics.size(); ++n)
      if (!plan_.nics[n].used)
        plan_.why.push_back("port " + to_string(m_.nics[n]) + " left out: " + plan_.nics[n].why);
    if (p_.nic == NicMode::off || !plan_.binds_gpus) return;
    for (size_t n = 0; n < m_.nics.size(); ++n) {
      if (m_.nics[n].active) continue;
      if (const int g = loser(n); g >= 0)
        warn("nic-down", "port " + to_string(m_.nics[n]) + " beside " + name(g) + " is down",
             "look at `ibstat " + m_.nics[n].name + "`, its cable and its switch");
    }
  }

  // A GPU of a rank to which this dead port would be nearer than what the rank got; or -1.
  int loser(size_t nic) const {
    for (const RankPlan& r : plan_.ranks)
      for (int g : r.gpus) {
        const Level level = m_.near[static_cast<size_t>(g)][nic].level;
        if (level <= Level::phb && (!r.gpu_nic || level < *r.gpu_nic)) return g;
      }
    return -1;
  }

  void look_at_places() {
    for (int g : plan_.gpus)
      if (is_unknown(gpu(g).place)) {
        warn("locality-unknown",
             "this machine does not say which CPUs its GPUs are near (a "
             "virtual machine?): cores are dealt by rank, memory is left alone",
             "give the planner a topology file: topology= in gpu-bind.conf");
        return;
      }
  }

  const Machine& m_;
  const Allocation& a_;
  const Policy& p_;
  Plan plan_;
  CpuSet allowed_;
  bool cores_known_ = true;
};

}  // namespace

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
