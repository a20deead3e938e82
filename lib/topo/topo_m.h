// The loaders of what people paste: `nvidia-smi topo -m` (or -mp), and `rocm-smi --showtoponuma`.
// topo.h is the front door.
//
// topo -m: a matrix of words between GPUs and NICs, then the CPUs and memory nodes of each GPU,
// then the NICs' names (older drivers put these at the heads of the columns). Tabs may have become
// blanks; lines that start with # and rows of NICs are skipped. It knows:
//   - how near each NIC is to each GPU, which is Machine::near;
//   - CPUs as the process that printed it may use them, so an empty list (Place) is not unusual;
//   - no PCI functions (Machine::made_up_ids), no cores (guessed, see assemble.h), no packages, no
//     link layers but what the names tell.
// A NIC is in a memory node if it is nearer than SYS to GPUs of this node only.
//
// showtoponuma: the memory node of each GPU, and no more; CPUs too, if the output of lscpu is in
// the same file.
#pragma once

#include "topo/topo.h"

namespace trainlaunch {

// Whether text looks like one of these.
bool is_topo_m(std::string_view text);
bool is_showtoponuma(std::string_view text);

Result<Machine> machine_from_topo_m(const std::string& text, const std::string& name);
Result<Machine> machine_from_showtoponuma(const std::string& text, const std::string& name);

}  // namespace trainlaunch
