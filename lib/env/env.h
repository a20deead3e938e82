// lib/env: from a plan to the environment of its ranks. This header is the folder's front door.
//
//   CUDA_VISIBLE_DEVICES,   the step's GPUs in the words Slurm uses for them, all of them in the
//   ROCR_VISIBLE_DEVICES,   plan's order or the rank's own; with numbers for NVIDIA,
//   ZE_AFFINITY_MASK        CUDA_DEVICE_ORDER=PCI_BUS_ID goes with it. One vendor's only: ROCm
//                           applies another's mask to what the first has left, so that Slurm's
//                           CUDA_VISIBLE_DEVICES and GPU_DEVICE_ORDINAL are taken away there.
//   NCCL_IB_HCA             "=mlx5_0:1,...": exact names, one list for all ranks of the node (a
//                           list per rank breaks NCCL's rings: NVIDIA/nccl issue 1478), no more
//                           than the 32 that NCCL takes
//   UCX_NET_DEVICES         the rank's own ports
//   NCCL_SOCKET_IFNAME      "=name" and plain name: the interface that leads to the job's other
//   GLOO_SOCKET_IFNAME      nodes; nothing when unsure
//   NCCL_TOPO_FILE          the site's file, if it is of this machine (nccl_topology.h)
//   and the site's own variables, those for a kind of port only where one is used.
//
// Of a variable's possible sources an option of the user's wins over the site's configuration, and
// that over the machine's topology. Whether what the rank's environment and NCCL's configuration
// files have wins over all of these (EnvMode::keep) or not (EnvMode::set) is decided in the rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bind/bind.h"
#include "env/route.h"

namespace trainlaunch {

enum class EnvMode : uint8_t { keep, set, off };

enum class Source : uint8_t { topology, site, option };
const char* name_of(Source source);

// "infiniband", "roce", "ethernet", "omni-path", "slingshot", "efa"; "" when the port's network is
// not known.
const char* kind_of(const Nic& nic);
inline constexpr const char* nic_kinds[] = {"infiniband", "roce",      "ethernet",
                                            "omni-path",  "slingshot", "efa"};

struct SiteVariable {
  std::string kind;  // of port; empty: every node
  std::string name, value;
};

struct EnvOptions {
  EnvMode mode = EnvMode::keep;
  // Slurm's words for the step's GPUs, one for each of Plan::gpus; empty: numbers in PCI order.
  std::vector<std::string> devices{};
  Route route{};                          // to the job's other nodes
  Source nics_from = Source::topology;    // who chose the ports
  std::vector<SiteVariable> variables{};  // for equal names a kind's wins, else the first
  std::string nccl_topology{};            // the site's file for this node; empty: none
};

struct Variable {
  std::string name, value;
  bool set = false;  // overrides what the rank's environment has
  Source source = Source::topology;
  std::string why{};  // where it comes from
};

struct Environment {
  std::vector<Variable> common;              // of every rank of the node
  std::vector<std::vector<Variable>> ranks;  // of one
  std::vector<std::string> unset;            // masks that would be applied beside ours
  std::vector<std::string> notes;            // why something is not set
  std::vector<Warning> warnings;
};

Environment environment(const Machine& machine, const Plan& plan, const EnvOptions& options);

}  // namespace trainlaunch
