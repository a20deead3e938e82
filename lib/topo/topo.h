// lib/topo: one compute node as the planner sees it. This header is the folder's front door.
//
// A Machine comes from one of the loaders and says the same things whichever it was: CPU cores with
// their hardware threads, memory nodes that have CPUs, GPUs, fabric ports, and how near each GPU is
// to each port. Nothing here knows of jobs, ranks or policies.
//
// Identity: a GPU is its PCI function, plus a partition number where several logical GPUs stand
// below one function (AMD CPX, TPX), plus the UUID of a MIG instance; a fabric port is its device
// name and port number. GPUs are in PCI order, which is also Slurm's order; ports are in PCI order,
// then by port.
//
// What a source does not say stays unknown: a memory node of -1, a rate of 0, an empty optional.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "topo/cpuset.h"

namespace trainlaunch {

struct PciId {
  uint32_t domain = 0;
  uint8_t bus = 0, device = 0, function = 0;
  auto operator<=>(const PciId&) const = default;
};
std::string to_string(const PciId& id);  // "0000:06:00.0"

// Where a device is attached. `cpus` are the CPUs beside it: of its memory node, or of a part of it
// (an L3 cache), or of a whole package; every CPU where the machine does not say; none where it
// says that those beside it are not among its own (a job that saw CPUs of the other socket only).
struct Place {
  CpuSet cpus;
  int numa = -1;  // the kernel's number of the one memory node; -1: unknown or several
};

// One CPU core; its position in Machine::cores is Slurm's abstract core number.
struct Core {
  std::vector<int> cpus;  // hardware threads, the kernel's numbers
  int l3 = -1;            // cores with equal numbers share that cache; -1: unknown
  int numa = -1;          // the kernel's number of the memory node; -1: unknown
  int package = -1;
};

struct NumaNode {
  int node = 0;
  CpuSet cpus;  // never empty
};

enum class Vendor : uint8_t { nvidia, amd, intel };
const char* name_of(Vendor vendor);

struct Gpu {
  PciId pci;
  std::optional<int> partition;
  std::string mig;           // UUID of the MIG instance, "MIG-..."; empty: not a part of a GPU
  int index = 0;             // position among all GPUs in PCI order
  std::string uuid;          // of the whole GPU
  std::optional<int> minor;  // N of /dev/nvidiaN or /dev/dri/renderDN: no order follows from it
  Vendor vendor = Vendor::nvidia;
  Place place;
};
// The PCI function, with what tells apart the GPUs of one: "0000:06:00.0", "0000:06:00.0/2" (a
// partition), "0000:06:00.0/MIG-...".
std::string to_string(const Gpu& gpu);

enum class LinkLayer : uint8_t { unknown, infiniband, ethernet, omni_path, slingshot };
const char* name_of(LinkLayer layer);

// One port of a fabric NIC.
struct Nic {
  std::string name;   // "mlx5_0"; for Slingshot the network device, "hsi0"
  bool named = true;  // false: the source does not say; `name` only tells it apart
  int port = 1;
  PciId pci;
  uint16_t vendor = 0, device = 0;  // PCI numbers; 0: unknown
  LinkLayer link_layer = LinkLayer::unknown;
  double rate_gbps = 0;           // 0: unknown
  bool active = true;             // port state ACTIVE, or no state known
  bool verbs = true;              // a verbs device that NCCL and UCX open by this name and port
  std::optional<bool> opens;      // whether this process may open its /dev/infiniband/uverbsN
  bool virtual_function = false;  // of a physical function that this machine has too
  std::vector<std::string> nets;  // its network devices, "ib0"
  Place place;
};
std::string to_string(const Nic& nic);  // "mlx5_0:1", "hsi0"

// A network device that sockets can use; those of fabric ports are here too, loopback is not.
struct Net {
  std::string name;          // "eth0", "bond0"
  std::optional<PciId> pci;  // none: virtual, or not said
  std::optional<bool> up;    // it has a carrier
  double rate_gbps = 0;      // 0: unknown
  Place place;
};

// Something about the machine or its file that whoever asked should know.
struct Warning {
  std::string code, message, fix;
  bool quiet = false;  // advice: shown in reports only
};

// How near two devices are, nearest first: below one PCI switch, several switches, one host bridge,
// in one memory node, or across. `steps` tells apart what has the same level: bridges passed below
// the common one; for `sys`, 0 within a package and 1 between packages.
enum class Level : uint8_t { pix, pxb, phb, node, sys };
const char* name_of(Level level);  // "PIX", "PXB", "PHB", "NODE", "SYS"

struct Near {
  Level level = Level::sys;
  int steps = 0;
  auto operator<=>(const Near&) const = default;
};

struct Machine {
  std::string kind;  // "live", "hwloc-xml", "nccl-xml", "topo-m", "showtoponuma", "sysfs"
  std::string file;  // where it was read from; empty: this machine
  // True: the source has no PCI functions (topo-m, showtoponuma). GPU i is then fffffff0:XX:00.0
  // and port j fffffff1:XX:00.0, XX being i or j in the order of the text: stable, and never a real
  // device's.
  bool made_up_ids = false;
  CpuSet cpus;     // all that exist
  CpuSet allowed;  // those that this process, or the one that wrote the file, may use
  std::vector<NumaNode> numa;
  std::vector<Core> cores;
  std::vector<Gpu> gpus;
  std::vector<Nic> nics;
  std::vector<Net> nets;
  std::vector<std::vector<Near>> near;  // [gpu][nic]
  std::vector<Warning> warnings;

  // The memory node that holds all of `cpus`; -1 when none does.
  int numa_of(const CpuSet& cpus) const;

  // Whether it says where a device is attached: beside some of its CPUs and not others, in a memory
  // node, or there is one place only (one memory node; without any, one package).
  bool knows(const Place& place) const;
};

// The machine this process runs on, all of it: what a cgroup forbids is there, but not `allowed`.
Result<Machine> load_live();

// A file in any known form, found from its content: hwloc XML, versions 1 and 2; NCCL's and RCCL's
// topology XML; what nvidia-smi topo -m (-mp) or rocm-smi --showtoponuma prints. Or a folder with
// the /sys and /proc of a machine, as hwloc-gather-topology makes. What cannot be read, or says
// nothing useful, is an error with exit_code::usage, in one line.
Result<Machine> load_file(const std::string& path);
Result<Machine> load_text(const std::string& text, const std::string& name);

// Makes hwloc deaf to its environment (HWLOC_XMLFILE and many more could replace or bend what is
// seen) and quiet on stderr. Call once, first thing in main: it changes the environment.
void isolate_hwloc();

}  // namespace trainlaunch
