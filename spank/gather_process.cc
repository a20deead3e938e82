#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>

#include "config.h"
#include "gather.h"

extern char** environ;

namespace trainlaunch {
namespace {

constexpr size_t longest_value = 4096;

std::string env(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool read_number(std::string_view text, int& number) {
  int n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < 0) return false;
  number = n;
  return true;
}

// Variables of one launcher, in each process that it starts.
struct Launcher {
  const char* mark;  // there only if this launcher is the innermost
  const char *rank, *ranks, *local_rank, *local_ranks;
};

// Inner launchers first: mpirun and torchrun run inside a Slurm step.
constexpr Launcher launchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPI_LOCALRANKID", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"SLURM_PROCID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""},
    {"RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
};

void who(RankFacts& f) {
  utsname host{};
  if (uname(&host) == 0) f.host = host.nodename;
  f.node = env("SLURMD_NODENAME");
  if (f.node.empty()) f.node = f.host.substr(0, f.host.find('.'));
  f.job = env("SLURM_JOB_ID");
  f.step = env("SLURM_STEP_ID");
  for (const Launcher& l : launchers) {
    if (!std::getenv(l.mark)) continue;
    read_number(env(l.rank), f.rank);
    read_number(env(l.ranks), f.ranks);
    read_number(env(l.local_rank), f.local_rank);
    int node = 0;
    if (*l.local_ranks)
      read_number(env(l.local_ranks), f.local_ranks);
    else if (read_number(env("SLURM_NODEID"), node))
      f.local_ranks = std::max(1, tasks_on_node(env("SLURM_STEP_TASKS_PER_NODE"), node));
    break;
  }
}

// linux/mempolicy.h; named here because old headers lack the last.
const char* policy_name(int mode) {
  constexpr const char* names[] = {
      "default",        "preferred",          "bind", "interleave", "local",
      "preferred-many", "weighted-interleave"};
  constexpr int flags = ~0xff;  // how nodes are numbered, and the like
  mode &= ~flags;
  return mode < static_cast<int>(std::size(names)) ? names[mode] : "unknown";
}

void memory(RankFacts& f) {
  constexpr size_t most_nodes = 1024, bits = 8 * sizeof(unsigned long);
  unsigned long nodes[most_nodes / bits] = {};
  int mode = 0;
  if (syscall(SYS_get_mempolicy, &mode, nodes, most_nodes + 1, nullptr, 0) == 0) {
    f.mem_policy = policy_name(mode);
    std::vector<int> list;
    for (size_t i = 0; i < most_nodes; ++i)
      if (nodes[i / bits] >> i % bits & 1) list.push_back(static_cast<int>(i));
    f.mem_nodes = to_list(list);
  }
  std::ifstream status("/proc/self/status");
  constexpr std::string_view key = "Mems_allowed_list:\t";
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key)) f.mems_allowed = line.substr(key.size());
  rlimit lock{};
  if (getrlimit(RLIMIT_MEMLOCK, &lock) == 0 && lock.rlim_cur != RLIM_INFINITY)
    f.memlock = static_cast<long long>(lock.rlim_cur);
}

// Whether a variable says something of binding or of a communication library. No other is told:
// what check prints ends up in tickets.
bool counts(std::string_view name) {
  constexpr std::string_view prefixes[] = {
      "NCCL_",        "RCCL_",         "GLOO_",           "UCX_",           "CUDA_VISIBLE_",
      "CUDA_DEVICE_", "CUDA_MPS_",     "ROCR_VISIBLE_",   "HIP_VISIBLE_",   "GPU_DEVICE_ORDINAL",
      "ZE_",          "GPU_BIND",      "SLURM_CPU_BIND",  "SLURM_MEM_BIND", "SLURM_GPU_BIND",
      "OMP_PLACES",   "OMP_PROC_BIND", "OMP_NUM_THREADS", "FI_PROVIDER"};
  constexpr std::string_view names[] = {"SLURMD_TRES_BIND",
                                        "SLURM_STEP_GPUS",
                                        "SLURM_JOB_GPUS",
                                        "SLURM_GPUS_ON_NODE",
                                        "SLURM_GPUS_PER_TASK",
                                        "SLURM_TRES_PER_TASK",
                                        "SLURM_NTASKS_PER_GPU",
                                        "SLURM_CPUS_PER_TASK",
                                        "SLURM_PROCID",
                                        "SLURM_LOCALID",
                                        "SLURM_NODEID",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_MPI_TYPE",
                                        "PMIX_NAMESPACE",
                                        "PMIX_RANK",
                                        "PMI_RANK"};
  return std::any_of(std::begin(prefixes), std::end(prefixes),
                     [&](std::string_view p) { return name.starts_with(p); }) ||
         std::find(std::begin(names), std::end(names), name) != std::end(names);
}

void environment(RankFacts& f) {
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos || !counts(text.substr(0, equals))) continue;
    f.env[std::string(text.substr(0, equals))] = text.substr(equals + 1, longest_value);
  }
  for (const char* name : {"NCCL_TOPO_FILE", "NCCL_GRAPH_FILE"})
    if (const char* path = std::getenv(name))
      f.files[name] = faccessat(AT_FDCWD, path, R_OK, AT_EACCESS) == 0;
  f.plan_applied = env("GPU_BIND_PLAN");
}

}  // namespace

std::vector<std::string> words_between(std::string_view text, char separator) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    out.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

int tasks_on_node(std::string_view list, int index) {
  for (const std::string& word : words_between(list, ',')) {
    const size_t paren = std::min(word.find("(x"), word.size());
    int tasks = 0, nodes = 1;
    if (!read_number(std::string_view(word).substr(0, paren), tasks)) return 0;
    if (paren < word.size() &&
        (word.back() != ')' ||
         !read_number(std::string_view(word).substr(paren + 2, word.size() - paren - 3), nodes)))
      return 0;
    if (index < nodes) return tasks;
    index -= nodes;
  }
  return 0;
}

void gather_process(RankFacts& f) {
  f.program = PACKAGE_VERSION;
  who(f);
  f.cpus = to_list(allowed_processors());
  memory(f);
  environment(f);
}

}  // namespace trainlaunch
