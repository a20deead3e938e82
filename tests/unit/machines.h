// Machines for tests, built by hand.
#pragma once

#include <cstdint>
#include <string>

#include "topo/topo.h"

namespace trainlaunch {

struct Shape {
  int packages = 2, nodes = 1, cores = 8;  // memory nodes of a package, cores of a node
  int threads = 2;                         // of a core
  int l3 = 8;                              // cores below one cache
};

// Core c has CPUs c, c + all cores, and so on, as Linux numbers them.
inline Machine box(const Shape& s) {
  Machine m;
  m.kind = "test";
  const int all = s.packages * s.nodes * s.cores;
  for (int node = 0; node < s.packages * s.nodes; ++node) {
    NumaNode n{node, {}};
    for (int c = node * s.cores; c < (node + 1) * s.cores; ++c) {
      Core core;
      core.l3 = c / s.l3;
      core.numa = node;
      core.package = node / s.nodes;
      for (int t = 0; t < s.threads; ++t) {
        core.cpus.push_back(c + t * all);
        n.cpus.set(static_cast<size_t>(c + t * all));
      }
      m.cores.push_back(core);
    }
    m.cpus |= n.cpus;
    m.numa.push_back(n);
  }
  m.allowed = m.cpus;
  return m;
}

// A place: a memory node, or -1 for a machine that does not say.
inline Place place(const Machine& m, int node) {
  return node < 0 ? Place{m.cpus, -1} : Place{m.numa[static_cast<size_t>(node)].cpus, node};
}

// GPUs come before ports.
inline void add_gpu(Machine& m, int node) {
  Gpu g;
  g.index = static_cast<int>(m.gpus.size());
  g.pci.bus = static_cast<uint8_t>(0x10 + g.index);
  g.place = place(m, node);
  m.gpus.push_back(g);
  m.near.emplace_back();
}

// A port in a memory node: NODE from the GPUs there, SYS from the others.
inline Nic& add_nic(Machine& m, int node, LinkLayer layer = LinkLayer::infiniband,
                    double rate = 400) {
  Nic n;
  n.name = "mlx5_" + std::to_string(m.nics.size());
  n.vendor = 0x15b3;
  n.pci.bus = static_cast<uint8_t>(0x80 + m.nics.size());
  n.link_layer = layer;
  n.rate_gbps = rate;
  n.place = place(m, node);
  for (size_t g = 0; g < m.gpus.size(); ++g) {
    const bool same = node >= 0 && m.gpus[g].place.numa == node;
    m.near[g].push_back({same ? Level::node : Level::sys, same ? 0 : 1});
  }
  m.nics.push_back(n);
  return m.nics.back();
}

inline void link(Machine& m, int gpu, int nic, Level level, int steps = 2) {
  m.near[static_cast<size_t>(gpu)][static_cast<size_t>(nic)] = {level, steps};
}

// HGX H100 as in NVIDIA/nccl issue 1264: eight pairs, and two ports between them for storage.
inline Machine hgx_h100() {
  Machine m = box({2, 1, 56, 2, 56});
  for (int g = 0; g < 8; ++g) add_gpu(m, g / 4);
  for (int n = 0; n < 10; ++n) add_nic(m, n < 5 ? 0 : 1);
  for (auto& row : m.near) row[3] = row[4] = {Level::sys, 1};
  const int pair[] = {0, 1, 2, 5, 6, 7, 8, 9};
  for (int g = 0; g < 8; ++g) link(m, g, pair[g], Level::pix);
  return m;
}

// DGX A100 with four memory nodes per socket: GPUs on nodes 3, 3, 1, 1, 7, 7, 5, 5, each pair below
// one switch with two ports.
inline Machine dgx_a100() {
  Machine m = box({2, 4, 16, 2, 4});
  const int node[] = {3, 3, 1, 1, 7, 7, 5, 5};
  for (int g = 0; g < 8; ++g) add_gpu(m, node[g]);
  for (int n = 0; n < 8; ++n) add_nic(m, node[n], LinkLayer::infiniband, 200);
  for (int g = 0; g < 8; ++g)
    for (int n = g / 2 * 2; n < g / 2 * 2 + 2; ++n) link(m, g, n, Level::pxb, 4);
  return m;
}

}  // namespace trainlaunch
