// What one rank really has: its CPUs, memory, devices, environment and limits, and how that
// compares with the plan. `gpu-bind check` gathers it (gather.h) and prints it; `gpu-bind doctor`
// reads it back, from any number of ranks.
//
// The JSON form is a contract, described in gpu-bind(1). An object may come in parts, one on each
// line: srun cuts lines of more than 1,024 characters and mixes the pieces of several ranks. Parts
// of one rank are merged as RFC 7386 says (nested objects member by member); that is why lists are
// objects with the name as key, and why what is unknown is left out.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace trainlaunch {

// Lists of CPUs and memory nodes are in Linux list form, "0-3,8".
struct GpuFacts {
  std::optional<int> numa;  // absent: unknown
  int index = 0;            // among all of the machine, in PCI order
  std::string vendor;
  std::string cpus;                         // beside it
  std::string socket;                       // of its package
  std::string device;                       // its node in /dev; empty: not known
  std::optional<bool> opens;                // whether this process may open that
  std::map<std::string, std::string> near;  // port -> PIX, PXB, PHB, NODE; absent: SYS
};

struct PortFacts {
  std::optional<int> numa;
  std::string link_layer;  // empty: unknown
  double gbps = 0;         // 0: unknown
  bool up = true;
  bool verbs = false;         // opened by name and port through InfiniBand verbs
  std::optional<bool> opens;  // whether this process may open its /dev/infiniband/uverbsN
  bool used = true;           // serves the GPUs of the job step
  std::string why;            // why not
};

// What the plan gives this rank.
struct PlannedFacts {
  std::string from;    // "plugin", "file", "options", "allocation"
  std::string digest;  // empty: not known
  std::vector<std::string> gpus, ports;
  std::string gpu_port;             // PIX and so on
  std::optional<std::string> cpus;  // absent: the mask is left alone
  std::optional<std::string> mems;  // absent: the policy is left alone
};

struct RankFacts {
  // Who.
  std::string program;     // version of gpu-bind
  std::string node, host;  // Slurm's name of the node; the host's own
  std::string job, step;   // empty outside of Slurm
  int rank = 0, ranks = 1;
  int local_rank = 0, local_ranks = 1;

  // What the process has.
  std::string cpus;
  int cores = 0;  // that `cpus` has a thread of
  std::string mem_policy, mem_nodes, mems_allowed;
  std::optional<long long> memlock;  // bytes; absent: no limit
  std::vector<std::string> visible;  // GPUs in the order of the rank's device numbers; where a word
                                     // of a mask names none of this machine, the word
  std::map<std::string, std::string> env;
  std::map<std::string, bool> files;  // variables that name files -> whether it can be read

  // What the machine has.
  std::string source;  // "live", "hwloc-xml"; "none" where it could not be read
  std::string machine_cpus;
  int numa_nodes = 0;
  bool virtual_machine = false;
  std::map<std::string, GpuFacts> gpus;    // by PCI function, "0000:06:00.0", and partition, "/1"
  std::map<std::string, PortFacts> ports;  // "mlx5_0:1"
  std::map<std::string, bool> interfaces;  // true: running, and has an address

  // How it compares.
  std::string plan_applied;  // the digest that the plugin left in the environment
  std::optional<PlannedFacts> planned;
  std::map<std::string, std::string> differs;   // what -> how
  std::map<std::string, std::string> warnings;  // of the plan: code -> message
};

inline constexpr size_t longest_line = 1000;

// In lines no longer than `limit` (0: one line), each ending in a newline.
std::string facts_json(const RankFacts& facts, size_t limit);

// Every object of `text`, parts merged, by rank. Labels of `srun --label` are understood. `name` is
// for errors, which are usage errors with the line's number.
Result<std::vector<RankFacts>> parse_facts(std::string_view text, const std::string& name);

}  // namespace trainlaunch
