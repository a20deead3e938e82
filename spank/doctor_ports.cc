// Fabric ports of each node, and the lists that name them.
#include <algorithm>

#include "doctor_parts.h"
#include "gather.h"

namespace trainlaunch {
namespace {

const char* fix_list =
    "leave NCCL_IB_HCA out: with --gpu-bind-nic=auto each node gets its own list";

bool is_near(const std::string& level) {
  return level == "PIX" || level == "PXB" || level == "PHB";
}

// The GPU of a rank beside which this port stands; empty: none.
std::string neighbour(const DoctorNode& node, const std::string& port) {
  for (const List& own : node.own)
    for (const std::string& id : own)
      if (const auto gpu = node.machine().gpus.find(id); gpu != node.machine().gpus.end())
        if (const auto near = gpu->second.near.find(port);
            near != gpu->second.near.end() && is_near(near->second))
          return id;
  return "";
}

// The ports that NCCL_IB_HCA leaves, of those that it can open at all.
List chosen(const RankFacts& r, const NcclNames& list) {
  List out;
  for (const auto& [name, port] : r.ports)
    if (port.verbs && list.names_one(name) != list.exclude) out.push_back(name);
  return out;
}

void look_at_state(const DoctorNode& node, Notes& notes) {
  // Of the ports that serve GPUs.
  double best = 0;
  std::string network;
  for (const auto& [name, p] : node.machine().ports) {
    if (!p.used || p.gbps < best) continue;
    best = p.gbps;
    network = p.link_layer;
  }
  for (const auto& [name, p] : node.machine().ports) {
    const std::string gpu = neighbour(node, name);
    if (!gpu.empty() && !p.up)
      notes.node(
          "nic-down", node, "a port beside a GPU is down",
          "look at `ibstat` of the node, the cable and the switch; until then drain the node",
          name + " beside GPU " + gpu);
    else if (!gpu.empty() && p.gbps > 0 && p.gbps < best && p.link_layer == network)
      notes.node("nic-slow", node, "a port beside a GPU is slower than its peers",
                 "look at `ibstat` of the node: the cable or its port has lost lanes or rate",
                 name + " beside GPU " + gpu + ", " + std::to_string(static_cast<int>(p.gbps)) +
                     " of " + std::to_string(static_cast<int>(best)) + " Gb/s");
    if (p.used && p.up && !p.opens.value_or(true))
      notes.node("nic-closed", node, "a port cannot be opened by the job's user",
                 "allow /dev/infiniband/* in the device cgroup and its modes", name);
  }
}

void look_at_hca_list(const DoctorNode& node, const RankFacts& r, Notes& notes) {
  const std::string* value = variable(r, "NCCL_IB_HCA");
  if (!value || value->empty()) return;
  const NcclNames list = NcclNames::parse(*value);
  if (list.exclude) return;
  if (!list.exact) {
    // What only a prefix takes, mlx5_1 for mlx5_10.
    NcclNames exact = list;
    exact.exact = true;
    List more;
    for (const std::string& name : chosen(r, list))
      if (!exact.names_one(name)) more.push_back(name);
    if (!more.empty())
      notes.rank(
          "hca-prefix", r,
          "NCCL_IB_HCA=" + *value + " takes names as prefixes, and so " + join(more) + " too",
          "NCCL_IB_HCA==" + join(list.names, ",") + ", or leave it out");
    else
      notes.rank("hca-inexact", r, "NCCL_IB_HCA=" + *value + " takes names as prefixes",
                 "NCCL_IB_HCA==" + join(list.names, ",") + ", or leave it out");
  }
  for (const std::string& word : list.names) {
    NcclNames one = list;
    one.names = {word};
    const List found = chosen(r, one);
    if (found.empty() && !r.ports.empty())
      notes.rank("nic-missing", r, "NCCL_IB_HCA names " + word + ", which this node does not have",
                 fix_list);
    for (const std::string& name : found)
      if (!r.ports.at(name).up && neighbour(node, name).empty())
        notes.rank("nic-down", r, "NCCL_IB_HCA names " + name + ", which is down", fix_list);
  }
}

void look_at_ucx_list(const RankFacts& r, Notes& notes) {
  const std::string* value = variable(r, "UCX_NET_DEVICES");
  if (!value || value->empty() || *value == "all" || r.ports.empty()) return;
  for (const std::string& word : words_between(*value, ',')) {
    const bool known =
        std::any_of(r.ports.begin(), r.ports.end(),
                    [&](const auto& p) {
                      return p.first == word || p.first.substr(0, p.first.find(':')) == word;
                    }) ||
        r.interfaces.contains(word);
    // UCX takes patterns.
    if (!known && word.find_first_of("*?[") == std::string::npos)
      notes.rank("nic-missing", r,
                 "UCX_NET_DEVICES names " + word + ", which this node does not have",
                 "leave UCX_NET_DEVICES out: with --gpu-bind-nic=auto each rank gets its own");
  }
}

// NCCL numbers the ports by each process's own list: ranks of a node that have different ones take
// each other's numbers for the wrong ports.
void look_at_different_lists(const DoctorNode& node, Notes& notes) {
  std::map<std::string, int> lists;
  for (const RankFacts* r : node.ranks) {
    const std::string* value = variable(*r, "NCCL_IB_HCA");
    lists.emplace(value ? *value : "", r->rank);
  }
  if (lists.size() < 2) return;
  List examples;
  for (const auto& [list, rank] : lists)
    examples.push_back("rank " + std::to_string(rank) + ": " + (list.empty() ? "not set" : list));
  if (examples.size() > 2) examples.resize(2);
  for (const RankFacts* r : node.ranks)
    notes.rank("hca-per-rank", *r,
               "ranks of one node have different NCCL_IB_HCA: NCCL builds wrong rings, or fails",
               "one list for all ranks of a node: leave NCCL_IB_HCA out, with --gpu-bind-nic=auto; "
               "per rank is UCX_NET_DEVICES",
               join(examples));
}

void look_for_any(const DoctorJob& job, const DoctorNode& node, Notes& notes) {
  const RankFacts& m = node.machine();
  if (!job.several_nodes() || m.gpus.empty() || m.source == "none") return;
  const bool any =
      std::any_of(m.ports.begin(), m.ports.end(), [](const auto& p) { return p.second.used; });
  if (any) return;
  List why;
  for (const auto& [name, p] : m.ports) why.push_back(name + ": " + p.why);
  notes.node("nic-none", node, "no fabric port can be used: NCCL goes over sockets",
             "`gpu-bind show` says why each port is left out; --gpu-bind-nic=list:NAMES overrides",
             why.empty() ? "the node has none" : join(why));
}

}  // namespace

void look_at_ports(const DoctorJob& job, Notes& notes) {
  for (const DoctorNode& node : job.nodes) {
    look_at_state(node, notes);
    for (const RankFacts* r : node.ranks) {
      look_at_hca_list(node, *r, notes);
      look_at_ucx_list(*r, notes);
    }
    look_at_different_lists(node, notes);
    look_for_any(job, node, notes);
  }
}

}  // namespace trainlaunch
