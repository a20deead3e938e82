// What the kernel says of a fabric port and hwloc does not: only for the machine we run on.
#pragma once

#include "topo/topo.h"

namespace trainlaunch {

// "400 Gb/sec (4X NDR)" as sysfs writes it; 0 when it is something else.
double parse_rate(std::string_view text);
LinkLayer parse_link_layer(std::string_view text);  // "InfiniBand", "Ethernet"

// Fills link_layer, rate_gbps and active from /sys/class/infiniband or /sys/class/net; what is not
// there stays as it was.
void read_port_state(Nic& nic);

}  // namespace trainlaunch
