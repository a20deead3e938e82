// What takes long to find out about the running machine, written down for those who ask later: its
// objects as hwloc sees them, and what NVIDIA's library says. What changes while the machine runs
// is not in it, and is looked at by every reader: the state of ports and network devices, which of
// them open, and the CPUs that the reader itself may use.
#pragma once

#include <string>

#include "topo/topo.h"

namespace trainlaunch {

// Differs whenever a snapshot taken now might: the boot, the host's name, CPUs and memory nodes,
// PCI functions and their drivers, devices that drivers have made, MIG instances and partitions,
// and the versions of hwloc and of this program. The same for every user.
std::string snapshot_key();

Result<std::string> take_snapshot();

// The machine as load_live() would find it. `text` is trusted as much as the caller's own memory:
// hwloc breaks down on what it has not written itself.
Result<Machine> load_snapshot(const std::string& text);

}  // namespace trainlaunch
