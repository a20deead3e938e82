// What all loaders share: from devices found in some order, with the bridges above them, to the
// devices and distances of a Machine.
#pragma once

#include <functional>
#include <vector>

#include "topo/topo.h"

namespace trainlaunch {

// Limits of what we believe a node to be. A file that says more is damaged or hostile: distances
// grow with the product of these two.
inline constexpr size_t max_gpus = 1024, max_nics = 4096;

// PCI bridges above a device, nearest first, each by any value that is its own.
struct Path {
  std::vector<uintptr_t> bridges;
  bool host = false;  // the last one is a host bridge: what meets there shares no switch
  int node = -1;      // devices with equal numbers are in one memory node; -1: unknown
};

struct FoundGpu {
  Gpu gpu;
  Path path;
};

struct FoundNic {
  Nic nic;
  Path path;
};

// Fills Machine::gpus, nics and near; CPUs and cores are already there. The error is a reason
// without the file's name.
Status take_devices(Machine& machine, std::vector<FoundGpu> gpus, std::vector<FoundNic> nics);

// Replaces each GPU by what `parts` makes of it, in place: itself, its parts, or nothing. Parts are
// as far from the ports as the whole.
void split_gpus(Machine& machine, const std::function<std::vector<Gpu>(const Gpu&)>& parts);

// Makes Machine::cores out of CPU numbers alone. `groups` are sets of whole cores. Where each is
// two equally long runs, equally far apart, these are taken for the two threads of each core, as
// Linux numbers them; otherwise each CPU is taken for a core.
void guess_cores(Machine& machine, const std::vector<CpuSet>& groups);

// A warning when CPU numbers have gaps or do not start at 0: cores are then not numbered as
// Slurm's.
void warn_of_missing_cpus(Machine& machine);

// What names that udev gives to RDMA devices tell: ibp14s0, rocep32s0f0, mlx5_bond_0, hfi1_0.
LinkLayer layer_of_name(std::string_view name);

// Whether text is a device name as the kernel allows it; anything else could not be used, and might
// bend what it is printed into.
bool is_device_name(std::string_view name);

// "0000:06:00.0", as strictly as the kernel writes it, domains of up to eight digits.
std::optional<PciId> parse_pci(std::string_view text);

}  // namespace trainlaunch
