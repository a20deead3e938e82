// What the kernel says of a running machine and hwloc does not. Everything is read below a root: ""
// for this machine, or the folder of a copied or made-up tree. What is not there stays as it was.
#pragma once

#include "topo/topo.h"

namespace trainlaunch {

// "400 Gb/sec (4X NDR)" as sysfs writes it; 0 when it is something else.
double parse_rate(std::string_view text);
LinkLayer parse_link_layer(std::string_view text);  // "InfiniBand", "Ethernet"

// Fills in
//   ports      state, rate, link layer, network devices (/sys/class/infiniband, /sys/class/net),
//              whether they are virtual functions;
//   GPUs       the minor of their device node (/proc/driver/nvidia, DRM), and for AMD, where hwloc
//              has no library to ask, partitions and UUIDs (/sys/class/kfd);
//   nets       carrier and rate, and those without a PCI function (bonds, virtual ones).
void add_host_facts(Machine& machine, const std::string& root);

// Fills in Nic::opens: tries to open the /dev/infiniband/uverbsN of each port.
void try_ports(Machine& machine, const std::string& root);

}  // namespace trainlaunch
