// A rank and its GPU, CPUs and memory; the ranks of a node beside each other.
#include <algorithm>

#include "doctor_parts.h"

namespace trainlaunch {
namespace {

const char* bind_it = "--gpu-bind-policy=auto";

std::string count(size_t n, const char* one, const char* many) {
  return std::to_string(n) + ' ' + (n == 1 ? one : many);
}

bool was_applied(const RankFacts& r) { return !r.plan_applied.empty(); }

// "gpu:per_task:1", perhaps behind another of its kind; none binds nothing.
bool slurm_binds_gpus(const RankFacts& r) {
  const std::string* bind = variable(r, "SLURMD_TRES_BIND");
  if (!bind) return false;
  size_t at = bind->find("gpu:");
  if (at == std::string::npos) return false;
  std::string_view how = std::string_view(*bind).substr(at + 4);
  if (how.starts_with("verbose,")) how.remove_prefix(8);
  return !how.empty() && !how.starts_with("none");
}

// Every GPU that the rank has, taken together: where they are.
struct Beside {
  CpuSet cpus, socket;
  std::set<int> nodes;
  bool known = true;
};

Beside beside(const RankFacts& r, const List& own) {
  Beside b;
  for (const std::string& id : own) {
    const auto gpu = r.gpus.find(id);
    if (gpu == r.gpus.end() || gpu->second.cpus.empty()) {
      b.known = false;
      continue;
    }
    b.cpus |= cpus_of(gpu->second.cpus);
    b.socket |= cpus_of(gpu->second.socket);
    if (gpu->second.numa) b.nodes.insert(*gpu->second.numa);
  }
  b.known = b.known && !own.empty();
  return b;
}

void look_at_gpus(const RankFacts& r, const List& own, Notes& notes) {
  if (slurm_binds_gpus(r))
    notes.rank("gpus-per-task", r,
               "Slurm gives each task its own GPUs only (SLURMD_TRES_BIND=" +
                   *variable(r, "SLURMD_TRES_BIND") +
                   "): other ranks' GPUs are out of reach, and peer-to-peer is off",
               "--gpus-per-node=N in place of --gpus-per-task and --gpu-bind, with " +
                   std::string(bind_it) + "; or --gpu-bind=none");
  const std::string* step = variable(r, "SLURM_STEP_GPUS");
  if (step && !step->empty() && r.visible.empty() && !r.gpus.empty())
    notes.rank("gpu-none", r, "the job step has GPUs, and this rank sees none of them",
               std::string(bind_it) + ", and no *_VISIBLE_DEVICES of one's own");
  for (const std::string& id : own)
    if (const auto gpu = r.gpus.find(id); gpu != r.gpus.end() && !gpu->second.opens.value_or(true))
      notes.rank("gpu-closed", r, "its GPU cannot be opened",
                 "the Files of gres.conf against `ls -l /dev/nvidia*`, and who may open them",
                 id + ", " + gpu->second.device);
}

void look_at_cpus(const RankFacts& r, const List& own, Notes& notes) {
  if (own.empty() || r.gpus.empty()) return;
  const CpuSet cpus = cpus_of(r.cpus);
  if (r.cores == 1)
    notes.rank("cores-one", r,
               cpus.count() == 1
                   ? "one CPU for a GPU: too few for data loading and NCCL's threads"
                   : "one core for a GPU: too few for data loading and NCCL's threads",
               "--cpus-per-task", "CPU " + r.cpus);
  const Beside b = beside(r, own);
  if (!b.known || cpus.none()) return;
  const std::string where =
      "CPUs " + r.cpus + ", GPU " + own.front() + " beside " + r.gpus.at(own.front()).cpus;
  // The plan has done what it could with the cores that the step has.
  const std::string fix = was_applied(r)
                              ? "--exclusive, or --gres-flags=enforce-binding so that cores come "
                                "with their GPUs"
                              : bind_it;
  if (b.socket.any() && (cpus & b.socket).none())
    notes.rank("cores-far", r, "its CPUs are on another socket than its GPU", fix, where);
  else if ((cpus & b.cpus).none())
    notes.rank("cores-outside", r, "none of its CPUs is beside its GPU", fix, where);
  else if (own.size() == 1 && (cpus & ~b.cpus).any())
    notes.rank("cores-loose", r, "it may run on CPUs that are not beside its GPU", fix, where);
}

void look_at_memory(const RankFacts& r, const List& own, Notes& notes) {
  const std::string policy = r.mem_policy + (r.mem_nodes.empty() ? "" : ' ' + r.mem_nodes);
  if (r.mem_policy == "interleave" || r.mem_policy == "weighted-interleave") {
    notes.rank("mem-interleaved", r, "its memory is spread over memory nodes (" + policy + ')',
               "--gpu-bind-mem=preferred, and no numactl --interleave");
    return;
  }
  const bool planned = r.planned && r.planned->mems && !r.differs.contains("mems");
  if (r.mem_policy == "bind" && !planned)
    notes.rank("mem-strict", r,
               "its memory is bound strictly (" + policy +
                   "): when that is full the rank dies, though there is memory elsewhere",
               "--gpu-bind-mem=preferred, and no --mem-bind=local");
  const Beside b = beside(r, own);
  const CpuSet nodes = cpus_of(r.mem_nodes);
  if (r.mem_policy == "default" || r.mem_policy == "local" || b.nodes.empty() || nodes.none())
    return;
  const bool near = std::any_of(b.nodes.begin(), b.nodes.end(),
                                [&](int n) { return nodes.test(static_cast<size_t>(n)); });
  if (!near && !planned)
    notes.rank("mem-far", r, "its memory comes from another node than its GPU's (" + policy + ')',
               "--gpu-bind-mem=preferred, and no --mem-bind");
}

void look_at_limits(const RankFacts& r, Notes& notes) {
  // NCCL and UCX register buffers of hundreds of megabytes; verbs' own documents say unlimited.
  constexpr long long enough = 1ll << 30;
  const bool verbs = std::any_of(r.ports.begin(), r.ports.end(),
                                 [](const auto& p) { return p.second.used && p.second.verbs; });
  if (verbs && r.memlock && *r.memlock < enough)
    notes.rank("memlock-low", r,
               "it may lock " + std::to_string(*r.memlock / 1024) +
                   " KiB of memory: InfiniBand verbs fail to register their buffers",
               "LimitMEMLOCK=infinity for slurmd, PropagateResourceLimitsExcept=MEMLOCK in "
               "slurm.conf");
}

void look_at_launch(const RankFacts& r, Notes& notes) {
  const bool pmi = variable(r, "PMIX_RANK") || variable(r, "PMIX_NAMESPACE") ||
                   variable(r, "PMI_RANK") || variable(r, "OMPI_COMM_WORLD_RANK");
  if (!r.step.empty() && r.ranks > 1 && !pmi)
    notes.rank("no-pmix", r,
               "started without PMIx: programs that bootstrap through it are each rank 0 of 1",
               "--mpi=pmix");
  if (r.planned && r.planned->from == "allocation" && !r.gpus.empty())
    notes.rank("unbound", r, "no plan was applied", bind_it);
  if (!r.planned || r.planned->from == "allocation" || r.differs.empty()) return;
  List what;
  for (const auto& [name, how] : r.differs) what.push_back(name);
  notes.rank("not-as-planned", r, "it has not what is planned for it: " + join(what),
             "look for what changes it after the plugin: a task prolog, a container plugin listed "
             "after gpu_bind.so, a wrapper with numactl or taskset",
             what.front() + ": " + r.differs.begin()->second);
}

// --- Ranks of a node beside each other. ---

bool shares_on_purpose(const RankFacts& r) {
  return variable(r, "CUDA_MPS_PIPE_DIRECTORY") || variable(r, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
}

void look_at_shared_gpus(const DoctorNode& node, Notes& notes) {
  std::map<std::string, std::vector<const RankFacts*>> users;
  for (size_t i = 0; i < node.ranks.size(); ++i)
    for (const std::string& gpu : node.own[i]) users[gpu].push_back(node.ranks[i]);
  for (const auto& [gpu, ranks] : users) {
    if (ranks.size() < 2 || shares_on_purpose(*ranks.front())) continue;
    for (const RankFacts* r : ranks)
      notes.rank("gpus-shared", *r,
                 "several ranks compute on one GPU: NCCL refuses that, and without MPS they wait "
                 "for each other",
                 "--ntasks-per-node no larger than the GPUs, with " + std::string(bind_it),
                 "GPU " + gpu + ", " + count(ranks.size(), "rank", "ranks"));
  }
}

void look_at_shared_cores(const DoctorNode& node, Notes& notes) {
  // Whoever is not bound shares everything: that is said as it is.
  std::vector<const RankFacts*> bound;
  for (const RankFacts* r : node.ranks)
    if (!r->machine_cpus.empty() && cpus_of(r->cpus) != cpus_of(r->machine_cpus))
      bound.push_back(r);
  std::map<size_t, const RankFacts*> first;  // of each CPU
  for (const RankFacts* r : bound) {
    const CpuSet cpus = cpus_of(r->cpus);
    for (size_t c = 0; c < max_cpu; ++c) {
      if (!cpus.test(c)) continue;
      const auto [at, fresh] = first.emplace(c, r);
      if (fresh) continue;
      const std::string example = "ranks " + std::to_string(at->second->rank) + " and " +
                                  std::to_string(r->rank) + " on CPU " + std::to_string(c);
      for (const RankFacts* who : {at->second, r})
        notes.rank("cores-shared", *who, "ranks of one node share CPUs",
                   std::string(bind_it) + " with --cpus-per-task, or --cpu-bind=cores", example);
      break;
    }
  }
}

}  // namespace

void look_at_ranks(const DoctorJob& job, Notes& notes) {
  for (const DoctorNode& node : job.nodes) {
    for (size_t i = 0; i < node.ranks.size(); ++i) {
      const RankFacts& r = *node.ranks[i];
      look_at_gpus(r, node.own[i], notes);
      look_at_cpus(r, node.own[i], notes);
      look_at_memory(r, node.own[i], notes);
      look_at_limits(r, notes);
      look_at_launch(r, notes);
    }
    look_at_shared_gpus(node, notes);
    look_at_shared_cores(node, notes);
  }
}

}  // namespace trainlaunch
