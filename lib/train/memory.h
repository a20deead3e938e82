// Memory: what this process has, and what it may have.
#pragma once

#include <cstdint>
#include <string>

#include "base/base.h"

namespace trainlaunch {

// Where the kernel tells; other places are for tests.
struct KernelFiles {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
};

struct Allowance {
  uint64_t bytes = 0;  // that one rank may still take
  std::string limit;   // what allows no more: "MemAvailable of 12.0 GiB, shared by 4 ranks"
};
// The least of what the node has available (or, where that is hidden, has at all), what the control
// groups of this process leave (version 2 or 1; those above count too), each shared evenly by the
// ranks of the node, and RLIMIT_AS.
Allowance allowed_memory(int ranks_of_node, const KernelFiles& files = {});

// Whether the kernel gives huge pages to those who ask for them.
bool huge_pages();

// Proportional set size of this process, in bytes: its own pages, and its share of the others'.
// 0: the kernel does not say.
uint64_t resident_share(const KernelFiles& files = {});

}  // namespace trainlaunch
