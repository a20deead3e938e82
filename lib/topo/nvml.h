// What NVIDIA's driver library says of GPUs: UUIDs, device minors, MIG instances. The library is
// opened when asked for, by name: programs start, and other machines can be planned for, without
// it.
#pragma once

#include <string>
#include <vector>

#include "topo/topo.h"

namespace trainlaunch {

struct NvmlGpu {
  PciId pci;
  std::string uuid;  // "GPU-..."
  std::optional<int> minor;
  bool mig_mode = false;
  std::vector<std::string> mig;  // UUIDs of its MIG instances, in NVML's order
};

// All GPUs that the library lists. Fails when there is no such library, or it does not work here.
Result<std::vector<NvmlGpu>> read_nvml(const std::string& library = "libnvidia-ml.so.1");

// Adds what NVML knows to the machine's GPUs of the same PCI functions. A GPU in MIG mode is
// replaced by its instances; without any it is left out, with a warning: nothing can run on it.
void add_nvml_facts(Machine& machine, const std::vector<NvmlGpu>& known);

}  // namespace trainlaunch
