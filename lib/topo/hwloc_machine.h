// The loaders that stand on hwloc; topo.h is the front door.
#pragma once

#include "topo/topo.h"

namespace trainlaunch {

Result<Machine> machine_from_hwloc_xml(const std::string& text, const std::string& name);
// The folder that hwloc-gather-topology makes, unpacked: /sys and /proc of some machine.
Result<Machine> machine_from_sysfs(const std::string& root);
Result<Machine> machine_from_this_host();

// What hwloc alone sees of this machine, as XML, and back: without the trial in a child process
// that files of unknown origin need, and without what the kernel says now.
Result<std::string> xml_of_this_host();
Result<Machine> machine_from_own_xml(const std::string& xml);
std::string hwloc_version();

}  // namespace trainlaunch
