// The parts of plan(), one question each; bind.h is the front door.
#pragma once

#include <string>
#include <vector>

#include "bind/bind.h"

namespace trainlaunch {

// For each of `gpus` its ports, among the used ones: nearest, balanced.
std::vector<std::vector<int>> pair_nics(const Machine& machine, const std::vector<int>& gpus,
                                        const std::vector<NicChoice>& nics);

// GPUs of each rank. `pairs` are pair_nics' answer for `gpus`.
std::vector<std::vector<int>> deal_gpus(const Machine& machine, int ranks,
                                        const std::vector<int>& gpus,
                                        const std::vector<std::vector<int>>& pairs);

// What a rank asks of the cores.
struct CoreWish {
  CpuSet beside;     // the CPUs beside its GPUs; none: no preference
  int numa = -1;     // their memory node
  int package = -1;  // and package
};
struct CoreShare {
  std::vector<int> cores;  // positions in Machine::cores
  int distance = 0;        // of the farthest: 0 beside, 1 memory node, 2 package, 3 across
  bool shared = false;     // more ranks than cores: others may have it too
};

// Deals `allowed` cores (positions, ascending) to ranks: disjoint, near, as equal as nearness lets.
std::vector<CoreShare> deal_cores(const Machine& machine, const std::vector<int>& allowed,
                                  const std::vector<CoreWish>& wishes);

// 0..3, as in CoreShare::distance.
int distance(const Core& core, const CoreWish& wish);

}  // namespace trainlaunch
