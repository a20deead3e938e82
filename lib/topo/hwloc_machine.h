// The loaders that stand on hwloc; topo.h is the front door.
#pragma once

#include "topo/topo.h"

namespace trainlaunch {

Result<Machine> machine_from_hwloc_xml(const std::string& text, const std::string& name);
// The folder that hwloc-gather-topology makes, unpacked: /sys and /proc of some machine.
Result<Machine> machine_from_sysfs(const std::string& root);
Result<Machine> machine_from_this_host();

}  // namespace trainlaunch
