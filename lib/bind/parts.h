// The parts of plan(), one question each; bind.h is the front door.
#pragma once

#include <string>
#include <vector>

#include "bind/bind.h"

namespace trainlaunch {

// For each of `gpus` its ports, among the used ones: nearest, balanced.
std::vector<std::vector<int>> pair_nics(const Machine& machine, const std::vector<int>& gpus,
                                        const std::vector<NicChoice>& nics);

std::string gbps(double rate);  // "400 Gb/s"

// What a rank asks of the cores.
struct CoreWish {
  bool known = false;  // false: no preference
  CpuSet beside;       // the CPUs beside its GPUs
  int numa = -1;       // their memory node
  int package = -1;    // and package
};
CoreWish wish_for(const Machine& machine, const std::vector<int>& gpus);

// How far a core is: 0 beside, 1 in the memory node, 2 in the package, 3 across.
int distance(const Core& core, const CoreWish& wish);

struct CoreShare {
  std::vector<int> cores;  // positions in Machine::cores
  int distance = 0;        // of the farthest
  bool shared = false;     // more ranks than cores: others may have it too
};

// Deals `allowed` cores (positions, ascending) to ranks, disjoint. The rule: ranks share evenly
// what is beside their GPUs, and one with fewer than an even share of all (or than the whole
// machine has beside its GPUs for it, where that is less) makes up for it with the nearest cores
// that are free, or that others have beyond such a share. What is then beside nobody's GPU stays
// free.
std::vector<CoreShare> deal_cores(const Machine& machine, const std::vector<int>& allowed,
                                  const std::vector<CoreWish>& wishes);

// The same in blocks of equal size, wherever they lie.
std::vector<CoreShare> split_cores(const std::vector<int>& allowed, size_t ranks);

// GPUs of each rank, in order. `pairs` are pair_nics' answer for `gpus`.
std::vector<std::vector<int>> deal_gpus(const Machine& machine, int ranks,
                                        const std::vector<int>& gpus,
                                        const std::vector<std::vector<int>>& pairs);

// GPUs of ranks that have their cores already: nearest, and each GPU once before any is taken
// twice.
std::vector<std::vector<int>> closest_gpus(const Machine& machine,
                                           const std::vector<CoreShare>& ranks,
                                           const std::vector<int>& gpus,
                                           const std::vector<std::vector<int>>& pairs);

// All of `gpus`, so ordered that the first of them, however many, use different ports and then
// different memory nodes.
std::vector<int> spread_gpus(const Machine& machine, const std::vector<int>& gpus,
                             const std::vector<std::vector<int>>& pairs);

}  // namespace trainlaunch
