// lib/bind: who gets what. This header is the folder's front door.
//
//   Plan = plan(Machine, Allocation, Policy)
//
// is a pure, deterministic function: every node, every rank and the command line compute the same
// answer from the same three things. Each choice carries its reason.
//
// The rules, in the order they are applied:
//   GPUs    rank i on GPU i of the step, in PCI order, so that rails line up across nodes. Several
//           GPUs per rank and several ranks per GPU are dealt in blocks, of one memory node where
//           that can be; with fewer ranks than GPUs and no even share, GPUs are taken so that their
//           ports differ. Or GPUs are matched with the ranks' cores (Policy::gpu).
//   ports   of the usable ones each GPU gets the nearest; where several are equally near, GPUs do
//           not share one while another idles (bipartite matching).
//   cores   disjoint shares of the step's own cores: evenly those beside the GPU; a rank with fewer
//           there than an even share of all (or than the whole machine would give it there, where
//           that is less) gets the rest of that share from the nearest others. Threads of a core
//           stay together. Never empty.
//   memory  the GPU's memory node, if the rank's cores are there.
//   A rank whose GPUs are on several memory nodes keeps every CPU and gets no memory node. One
//   without GPUs gets cores, and the port of the memory node that these are in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "topo/topo.h"

namespace trainlaunch {

inline constexpr int max_local_ranks = 1024;

// What the user asked of the resource manager itself; those parts are left alone.
struct Asked {
  bool cpu = false, mem = false, gpu = false;
};

// The node's part of a job step.
struct Allocation {
  int ranks = 0;                          // on this node; 0: one per GPU (one without GPUs)
  std::optional<std::vector<int>> cores;  // positions in Machine::cores; absent: all
  std::optional<std::vector<int>> gpus;   // positions in Machine::gpus, ascending; absent: all
  Asked asked;
};

// The step's GPUs from Slurm's numbers and its words for them, one for each ("0", "GPU-...",
// "MIG-..."). A UUID that the machine knows decides, for Slurm counts MIG instances in its own
// order; else the number does, in PCI order. Of instances that the machine does not show nothing
// can be said: then there are no GPUs, and a warning.
struct StepGpus {
  std::vector<int> gpus;           // positions in Machine::gpus
  std::vector<std::string> words;  // Slurm's for each
  std::vector<Warning> warnings;
};
StepGpus find_gpus(const Machine& machine, const std::vector<int>& numbers,
                   const std::vector<std::string>& words);

enum class CpuMode : uint8_t { local, numa, off };
enum class MemMode : uint8_t { preferred, bind, off };
enum class NicMode : uint8_t { automatic, closest, all, off, list };
enum class Visible : uint8_t { automatic, ordered, own };

// Which GPU a rank gets. `automatic`: rank i on GPU i of the step; cores follow the GPU. `closest`:
// ranks share out the step's cores in order, and each gets the GPU nearest to its own. `map`: what
// Policy::map says. `off`: nothing is bound.
enum class GpuMode : uint8_t { automatic, closest, map, off };

struct Policy {
  GpuMode gpu = GpuMode::automatic;
  std::vector<int> map;  // for GpuMode::map: positions in the step's GPUs, rank after rank
  Visible visible = Visible::automatic;
  CpuMode cpu = CpuMode::local;
  bool one_thread = false;  // of each core
  MemMode mem = MemMode::preferred;
  NicMode nic = NicMode::automatic;
  std::vector<std::string> nics;  // for NicMode::list: "mlx5_0" or "mlx5_0:1"
  // The site's: names or shell patterns, "mlx5_3", "mlx5_bond_*", "mlx5_0:2". What is excluded, or
  // not included where anything is, is used only if NicMode::list names it.
  std::vector<std::string> nic_include, nic_exclude;
};

struct RankPlan {
  std::vector<int> gpus;         // positions in Machine::gpus
  std::vector<int> nics;         // positions in Machine::nics
  std::optional<Level> gpu_nic;  // the farthest of its pairs
  CpuSet cpus;                   // what it may run on
  bool keep_cpus = false;        // `cpus` is no choice of ours: leave the mask alone
  std::optional<int> mem;        // the kernel's number of its memory node
  bool spans = false;            // several places: nothing per rank is narrowed
  std::vector<std::string> why;
};

struct NicChoice {
  bool used = false;
  std::string why;          // why not, when not
  bool over_limit = false;  // not, because NCCL takes no more
  bool as_near = false;     // not, though as near to some GPU as what that has
};

struct Plan {
  std::vector<RankPlan> ranks;
  std::vector<int> gpus;        // of the step, in PCI order
  std::vector<int> gpu_order;   // the same, as every rank sees them; empty: each sees its own
  std::vector<NicChoice> nics;  // for each of Machine::nics
  MemMode mem = MemMode::off;
  bool binds_gpus = false;  // the choice of GPUs is ours
  std::vector<Warning> warnings;
  std::vector<std::string> why;  // for the node

  std::vector<int> used_nics() const;
};

// Errors: nothing can be planned (GPUs that are not there, too many ranks, a port that is not
// there).
Result<Plan> plan(const Machine& machine, const Allocation& allocation, const Policy& policy);

// Which ports serve GPUs `gpus` (positions): up, like their peers, and nearest to some of them.
Result<std::vector<NicChoice>> choose_nics(const Machine& machine, const std::vector<int>& gpus,
                                           const Policy& policy);

// 64 hexadecimal digits, which every rank has in GPU_BIND_PLAN: three digests, one after another.
//   0-31   the whole plan: ranks, their devices, CPUs and memory; not reasons or names of hosts.
//          Nodes of one kind and one share of a job have equal ones.
//   32-47  the rails: for each local rank the places of its ports among the used ones, in PCI
//          order. Names do not count, for they may differ between nodes that are wired alike.
//          Comparable between nodes with equally many ranks; where they differ, ranks that talk
//          to each other sit on different rails.
//   48-63  the used ports: how many there are of each network and rate. Where they differ, NCCL may
//          hang or run at the pace of the poorest node.
std::string digest(const Machine& machine, const Plan& plan);

// What the two latter digests are of, in words for people: "rank 0: rail 0; rank 1: rail 1" and
// "8 x infiniband 400 Gb/s".
std::string rails_of(const Plan& plan);
std::string ports_of(const Machine& machine, const Plan& plan);

}  // namespace trainlaunch
