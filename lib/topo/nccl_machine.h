// The loader of NCCL's and RCCL's topology files: what NCCL_TOPO_DUMP_FILE writes, and what clouds
// publish for NCCL_TOPO_FILE. topo.h is the front door.
//
//   <system> <cpu numaid affinity> <pci busid class vendor> ... <gpu/> or <nic> <net/> </nic>
//
// Such a file knows the switches and the CPUs of each memory node. It knows no cores (guessed, see
// assemble.h), no packages, and no host bridges: two devices that have no switch in common and the
// same <cpu> are NODE apart; SYS where it is numaid="-1" and has all CPUs, for that says nothing.
// Hand-written ones leave out more: NICs without names, functions without a class, memory nodes
// without CPUs; what is missing stays unknown, with a warning.
#pragma once

#include "topo/topo.h"

namespace trainlaunch {

Result<Machine> machine_from_nccl_xml(const std::string& text, const std::string& name);

}  // namespace trainlaunch
