// What ranks know of a job as it should be; tests break it.
#pragma once

#include <string>
#include <vector>

#include "spank/facts.h"

namespace trainlaunch {

inline std::string pci(int gpu) { return "0000:" + std::to_string(10 + gpu) + ":00.0"; }
inline std::string port(int nic) { return "mlx5_" + std::to_string(nic) + ":1"; }

// Rank `local` of a node with eight GPUs on two sockets of 56 cores, each GPU with a port below its
// switch, bound as it should be.
inline RankFacts healthy(int node = 0, int local = 0, int ranks = 16) {
  RankFacts f;
  f.program = "1.0";
  f.node = f.host = "n" + std::to_string(node + 1);
  f.job = "7";
  f.step = "0";
  f.local_rank = local;
  f.local_ranks = 8;
  f.rank = node * 8 + local;
  f.ranks = ranks;
  f.cpus = std::to_string(14 * local) + '-' + std::to_string(14 * local + 13);
  f.cores = 14;
  f.mem_policy = "preferred";
  f.mem_nodes = std::to_string(local / 4);
  f.mems_allowed = "0-1";
  f.source = "live";
  f.machine_cpus = "0-111";
  f.numa_nodes = 2;
  for (int g = 0; g < 8; ++g) {
    GpuFacts gpu;
    gpu.index = g;
    gpu.numa = g / 4;
    gpu.vendor = "nvidia";
    gpu.cpus = gpu.socket = g < 4 ? "0-55" : "56-111";
    gpu.device = "/dev/nvidia" + std::to_string(g);
    gpu.opens = true;
    gpu.near[port(g)] = "PIX";
    f.gpus[pci(g)] = gpu;
    PortFacts p;
    p.numa = g / 4;
    p.link_layer = "infiniband";
    p.gbps = 400;
    p.verbs = true;
    p.opens = true;
    f.ports[port(g)] = p;
    f.visible.push_back(pci(g));
  }
  f.interfaces = {{"lo", true}, {"eth0", true}, {"eth1", false}};
  f.env = {{"PMIX_RANK", std::to_string(f.rank)},
           {"CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7"},
           {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"},
           {"NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1"},
           {"UCX_NET_DEVICES", port(local)},
           {"NCCL_SOCKET_IFNAME", "=eth0"},
           {"GLOO_SOCKET_IFNAME", "eth0"}};
  f.plan_applied = std::string(64, 'a');
  PlannedFacts planned;
  planned.from = "plugin";
  planned.digest = f.plan_applied;
  planned.gpus = {pci(local)};
  planned.ports = {port(local)};
  planned.cpus = f.cpus;
  planned.mems = f.mem_nodes;
  f.planned = planned;
  return f;
}

inline std::vector<RankFacts> job(int nodes = 2) {
  std::vector<RankFacts> out;
  for (int n = 0; n < nodes; ++n)
    for (int r = 0; r < 8; ++r) out.push_back(healthy(n, r, nodes * 8));
  return out;
}

}  // namespace trainlaunch
