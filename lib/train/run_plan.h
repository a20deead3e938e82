// What a run will need and do, before anything of it is allocated: train --plan, and the check at
// the start of every run.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/base.h"
#include "comm/traffic.h"
#include "train/config.h"
#include "train/memory.h"

namespace trainlaunch {

// The memory of one rank, by kind.
struct MemoryNeed {
  struct Item {
    std::string what;
    uint64_t bytes = 0;
  };
  std::vector<Item> items;
  bool on_host = true;  // or on a device whose memory the system does not count
  uint64_t total() const;
};
// `program`: what the process has already, before it makes anything of the run (resident_share()).
Result<MemoryNeed> memory_need(const RunConfig& config, int rank, const Places& places, int threads,
                               uint64_t program);
// Where the ranks of a run are, by how many each node has.
Places places_of(const RunConfig& config, std::span<const int> node_of);

// Refuses (usage) a run that needs more than is allowed, with the number that is missing. The
// configuration's `memory` is for everything; what the system allows is besides the program, which
// has its memory. Memory of another device than the host is only checked against the former.
Status check_memory(const RunConfig& config, const MemoryNeed& need, const Allowance& allowed);
// What `memory` says, or else the system.
Allowance allowance(const RunConfig& config, int ranks_of_node);

// Ranks are dealt out to the nodes as evenly as may be, the first nodes first.
struct Site {
  int ranks = 1, nodes = 1;
  double network = 12.5;  // GB/s of one node, each way
};
struct RunPlan {
  std::vector<std::string> lines;
  Status fits;
};
// Measures the speed of products, and allocates no more than that needs.
Result<RunPlan> plan_run(const RunConfig& config, const Site& site);

}  // namespace trainlaunch
