// From hwloc's tree of objects to a Machine.
#pragma once

#include <hwloc.h>

#include "topo/topo.h"

namespace trainlaunch {

// `topology` is loaded, with disallowed objects and I/O. The error is a reason without a file name.
Result<Machine> read_hwloc(hwloc_topology_t topology);

}  // namespace trainlaunch
