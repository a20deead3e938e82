// NCCL's topology file (NCCL_TOPO_FILE), for machines that hide which switch their devices are
// behind: is one of this machine, and what would one for it be?
#pragma once

#include <string>

#include "base/result.h"
#include "topo/topo.h"

namespace trainlaunch {

// Is `file`, read from such a file, of `machine`? Published ones have had wrong CPU masks,
// exchanged memory nodes, and other machines' bus numbers (Azure/azhpc-images pull 391 and 393,
// issue 327), and NCCL believes them: all CPUs of the machine and no others, no CPU in two memory
// nodes, memory nodes and the GPUs in them as far as the machine tells them, the same GPUs, and no
// port that the machine does not have. The error says what is wrong.
Status is_of_machine(const Machine& file, const Machine& machine);

// The same for the file at `path`.
Status check_nccl_topology(const std::string& path, const Machine& machine);

// What NCCL asks of a <cpu>: it does not start without `arch`.
struct CpuModel {
  std::string arch;           // in NCCL's words: "x86_64", "arm64", "ppc64"
  std::string vendor;         // as CPUID gives it, "AuthenticAMD"; empty but for x86
  int family = 0, model = 0;  // as NCCL reckons them from CPUID
};
CpuModel this_cpu();
// From `uname -m` and the text of /proc/cpuinfo.
CpuModel cpu_model(const std::string& machine, const std::string& cpuinfo);

// A topology file for `machine`: each memory node with its CPUs, each GPU and port below a switch
// of its own making with what is PIX to it, and such switches below another with what is PXB. What
// NCCL finds out by itself (links, speeds, NVLink) is left to it. An error if the machine does not
// say in which memory node a GPU is.
Result<std::string> nccl_topology(const Machine& machine, const CpuModel& cpu);

}  // namespace trainlaunch
