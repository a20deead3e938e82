#include <algorithm>
#include <set>
#include <tuple>

#include "bind/planner.h"

namespace trainlaunch {

bool Planner::warned(const char* code) const {
  return std::any_of(plan_.warnings.begin(), plan_.warnings.end(),
                     [&](const Warning& w) { return w.code == code; });
}

void Planner::tell_gpus() {
  if (plan_.gpus.empty()) return;
  if (!plan_.binds_gpus) {
    warn("gpu-bind-asked",
         "GPUs are bound to tasks by Slurm, so that ranks cannot be placed by "
         "their GPU and peer-to-peer between GPUs may be off",
         "leave out --gpu-bind and --gpus-per-task, or give --gpu-bind=none");
    return;
  }
  std::map<int, size_t> users;
  for (const RankPlan& r : plan_.ranks)
    for (int g : r.gpus) ++users[g];
  tell_sharing(users);
  tell_instances();
  const size_t ranks = plan_.ranks.size(), gpus = plan_.gpus.size();
  const std::string head =
      count_of(ranks, "rank", "ranks") + " on " + count_of(gpus, "GPU", "GPUs");
  if (p_.gpu == GpuMode::map)
    plan_.why.push_back(head + ", as the map says");
  else if (closest())
    plan_.why.push_back(head + ": the step's cores are split among ranks in order, and each rank " +
                        "has the GPU nearest to its own, each GPU once before any is taken twice");
  else
    plan_.why.push_back(head + ", in PCI order" + (ranks == gpus ? ": rank i on GPU i" : ""));
  if (p_.gpu != GpuMode::closest) return;
  if (!closest())
    warn("closest-unknown", "the step's cores are not known: GPUs are given in PCI order instead",
         "--gpu-bind-policy=auto");
  else if (a_.asked.cpu || p_.cpu == CpuMode::off)
    warn("closest-assumed",
         "GPUs are chosen for ranks that have equal parts of the step's cores, in order; "
         "whether they do is Slurm's choice",
         a_.asked.cpu ? "leave out --cpu-bind" : "--gpu-bind-cpu=local");
}

// Sharing that was asked for by name is told as advice.
void Planner::tell_sharing(const std::map<int, size_t>& users) {
  const size_t ranks = plan_.ranks.size(), gpus = plan_.gpus.size();
  const bool mapped = p_.gpu == GpuMode::map;
  size_t least = ranks, most = 0, taken = 0;
  for (const auto& [g, n] : users) {
    least = std::min(least, n);
    most = std::max(most, n);
    taken += n;
  }
  if (most > 1)
    warn("gpus-shared",
         count_of(ranks, "rank", "ranks") + " share " + count_of(users.size(), "GPU", "GPUs") +
             (least < most ? " unevenly, " + std::to_string(least) + " to " + std::to_string(most) +
                                 " on one"
                           : "") +
             ": right with MPS or shards, otherwise a mistake",
         "--ntasks-per-node=" + std::to_string(gpus) + " or more GPUs", mapped);
  if (users.size() < gpus)
    warn("gpus-idle",
         count_of(gpus - users.size(), "GPU", "GPUs") + " of the step " +
             (gpus - users.size() == 1 ? "has" : "have") + " no rank",
         "--ntasks-per-node=" + std::to_string(gpus), mapped);
}

void Planner::tell_instances() {
  std::map<PciId, std::set<size_t>> ranks_of;
  for (size_t i = 0; i < plan_.ranks.size(); ++i) {
    const RankPlan& r = plan_.ranks[i];
    size_t instances = 0;
    for (int g : r.gpus) {
      if (gpu(g).mig.empty()) continue;
      ++instances;
      ranks_of[gpu(g).pci].insert(i);
    }
    if (instances > 1 && !warned("mig-several"))
      warn("mig-several",
           "rank " + std::to_string(i) + " has " + std::to_string(instances) +
               " MIG instances, of which a CUDA process can use one",
           "--ntasks-per-node=" + std::to_string(plan_.gpus.size()));
  }
  for (const auto& [pci, ranks] : ranks_of)
    if (ranks.size() > 1 && !warned("mig-nccl"))
      warn("mig-nccl",
           "several ranks have MIG instances of GPU " + to_string(pci) +
               ": NCCL refuses them, or moves their data through the host",
           "NCCL_MULTI_RANK_GPU_ENABLE=1 where NCCL knows it, or another backend", true);
}

void Planner::tell_cores(bool doubled, const std::vector<size_t>& one_core) {
  const auto with_gpu = std::count_if(one_core.begin(), one_core.end(),
                                      [&](size_t i) { return !plan_.ranks[i].gpus.empty(); });
  if (doubled)
    warn("cores-few",
         count_of(plan_.ranks.size(), "rank", "ranks") + " share " +
             count_of(cores_.size(), "core", "cores"),
         "--cpus-per-task");
  else if (with_gpu > 0)
    warn("cores-one",
         count_of(static_cast<size_t>(with_gpu), "rank has", "ranks have") +
             " one core for a GPU: too few for data loading and NCCL's threads",
         "--cpus-per-task", true);
}

void Planner::tell_idle_cores() {
  CpuSet used;
  for (const RankPlan& r : plan_.ranks) used |= r.cpus;
  std::vector<int> idle;
  for (int c : cores_)
    if (!used.test(static_cast<size_t>(threads(c).front()))) idle.push_back(c);
  if (idle.empty()) return;
  CpuSet cpus;
  for (int c : idle)
    for (int cpu : threads(c)) cpus.set(static_cast<size_t>(cpu));
  plan_.why.push_back("CPUs " + to_list(cpus) + " of the step are left idle: they are " +
                      "beside no rank's GPU; --gpu-bind-cpu=off lets ranks run there too");
}

void Planner::tell_ports() {
  for (size_t n = 0; n < m_.nics.size(); ++n)
    if (!plan_.nics[n].used)
      plan_.why.push_back("port " + to_string(m_.nics[n]) + " left out: " + plan_.nics[n].why);
  if (p_.nic == NicMode::off || !plan_.binds_gpus) return;
  for (size_t n = 0; n < m_.nics.size(); ++n) {
    const Nic& port = m_.nics[n];
    const int g = loser(n);
    if (!port.active && g >= 0)
      warn("nic-down", "port " + to_string(port) + " beside " + name(g) + " is down",
           "look at `ibstat " + port.name + "`, its cable and its switch");
    else if (port.opens == false && g >= 0)
      warn("nic-closed",
           "port " + to_string(port) + " beside " + name(g) + " cannot be opened by this user",
           "the rights of its /dev/infiniband/uverbs device, and the job's device cgroup");
    if (plan_.nics[n].as_near && !warned("nic-spare"))
      warn("nic-spare",
           "port " + to_string(port) +
               " is as near to a GPU as the one which that got, but below no GPU's switch: it is "
               "taken for storage or management, and left out",
           "if it is for jobs: nic-include in gpu-bind.conf, or --gpu-bind-nic=all", true);
    tell_slow(n);
  }
}

// A port below a GPU's switch that runs slower than its peers: a bad cable, or a speed that was not
// agreed on.
void Planner::tell_slow(size_t n) {
  const Nic& port = m_.nics[n];
  double top = 0;
  for (int other : plan_.used_nics())
    if (nic(other).link_layer == port.link_layer) top = std::max(top, nic(other).rate_gbps);
  if (!port.active || port.rate_gbps <= 0 || port.rate_gbps >= top) return;
  for (const RankPlan& r : plan_.ranks)
    for (int g : r.gpus) {
      const Level level = m_.near[static_cast<size_t>(g)][n].level;
      const bool mine =
          std::find(r.nics.begin(), r.nics.end(), static_cast<int>(n)) != r.nics.end();
      if (level > Level::pxb || (!mine && r.gpu_nic && *r.gpu_nic <= level)) continue;
      warn("nic-slow",
           "port " + to_string(port) + " beside " + name(g) + " runs at " + gbps(port.rate_gbps) +
               ", others at " + gbps(top),
           "look at `ibstat " + port.name + "`, its cable and its switch");
      return;
    }
}

// A GPU of a rank to which this dead port would be nearer than what the rank got; or -1.
int Planner::loser(size_t n) const {
  for (const RankPlan& r : plan_.ranks)
    for (int g : r.gpus) {
      const Level level = m_.near[static_cast<size_t>(g)][n].level;
      if (level <= Level::phb && (!r.gpu_nic || level < *r.gpu_nic)) return g;
      // Farther off only if it is of the kind that the rank uses: other cards have idle ports.
      if (level == Level::node && r.gpu_nic == Level::sys && has_like(r, n)) return g;
    }
  return -1;
}

bool Planner::has_like(const RankPlan& r, size_t n) const {
  const auto kind = [](const Nic& port) {
    return std::make_tuple(port.vendor, port.device, port.link_layer);
  };
  return std::any_of(r.nics.begin(), r.nics.end(),
                     [&](int own) { return kind(nic(own)) == kind(m_.nics[n]); });
}

void Planner::tell_places() {
  for (int g : plan_.gpus)
    if (!m_.knows(gpu(g).place)) {
      warn("locality-unknown",
           "this machine does not say which CPUs its GPUs are near (a "
           "virtual machine?): cores are dealt by rank, memory is left alone",
           "give the planner a topology file: topology= in gpu-bind.conf");
      return;
    }
}

}  // namespace trainlaunch
