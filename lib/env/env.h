// lib/env: from a plan to the environment of its ranks. This header is the folder's front door.
//
//   CUDA_VISIBLE_DEVICES,   the step's GPUs in the words Slurm uses for them, all of them in the
//   ROCR_VISIBLE_DEVICES,   plan's order or the rank's own; with numbers for NVIDIA,
//   ZE_AFFINITY_MASK        CUDA_DEVICE_ORDER=PCI_BUS_ID goes with it. One vendor's only: a mask
//                           beside another's would be applied twice.
//   NCCL_IB_HCA             "=mlx5_0:1,...": exact names, one list for all ranks of the node (a
//   list
//                           per rank breaks NCCL's rings: NVIDIA/nccl issue 1478)
//   UCX_NET_DEVICES         the rank's own ports
//   NCCL_SOCKET_IFNAME      "=name" and plain name: the interface that leads to the job's other
//   GLOO_SOCKET_IFNAME      nodes; nothing when unsure
#pragma once

#include <string>
#include <vector>

#include "bind/bind.h"
#include "env/route.h"

namespace trainlaunch {

enum class EnvMode : uint8_t { keep, set, off };

struct EnvOptions {
  EnvMode mode = EnvMode::keep;
  // Slurm's words for the step's GPUs, one for each of Plan::gpus; empty: numbers in PCI order.
  std::vector<std::string> devices{};
  Route route{};  // to the job's other nodes
};

struct Variable {
  std::string name, value;
  bool set = false;  // overrides what the rank's environment has
  std::string why;   // where it comes from
};

struct Environment {
  std::vector<Variable> common;              // of every rank of the node
  std::vector<std::vector<Variable>> ranks;  // of one
  std::vector<std::string> notes;            // why something is not set
};

Environment environment(const Machine& machine, const Plan& plan, const EnvOptions& options);

}  // namespace trainlaunch
