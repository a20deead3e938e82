// What a rank's environment makes of network interfaces, masks, files and switches.
#include <algorithm>

#include "doctor_parts.h"
#include "gather.h"

namespace trainlaunch {
namespace {

bool is_number(std::string_view word) {
  return !word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos;
}

bool is_loopback(const std::string& name) { return name == "lo" || name.starts_with("lo:"); }

// NCCL_SOCKET_IFNAME: the interfaces that it leaves, of those that run and have an address. When it
// is set NCCL no longer leaves out lo and docker by itself.
void look_at_nccl_sockets(const DoctorJob& job, const RankFacts& r, Notes& notes) {
  const std::string* value = variable(r, "NCCL_SOCKET_IFNAME");
  // NCCL ignores a value of one character.
  if (!value || value->size() < 2 || r.interfaces.empty()) return;
  const NcclNames list = NcclNames::parse(*value);
  List usable, idle;
  for (const auto& [name, up] : r.interfaces)
    if (list.names_one(name) != list.exclude) (up ? usable : idle).push_back(name);
  const char* fix =
      "leave NCCL_SOCKET_IFNAME out: the plan names the interface that leads to the job's nodes";
  if (usable.empty())
    notes.rank("socket-interface", r,
               "NCCL_SOCKET_IFNAME=" + *value + " leaves no interface that runs and has an address",
               fix, idle.empty() ? "" : join(idle) + " does not");
  else if (job.several_nodes() && std::all_of(usable.begin(), usable.end(), is_loopback))
    notes.rank("socket-interface", r,
               "NCCL_SOCKET_IFNAME=" + *value + " leaves lo only, which leads to no other node",
               fix);
}

void look_at_gloo(const RankFacts& r, Notes& notes) {
  const std::string* value = variable(r, "GLOO_SOCKET_IFNAME");
  if (!value || value->empty()) return;
  const char* fix = "a plain name, one that `ip -brief address` lists; or leave it out";
  const bool syntax = value->find_first_of("^=") != std::string::npos;
  const bool address = value->find_first_not_of("0123456789.") == std::string::npos ||
                       std::count(value->begin(), value->end(), ':') > 1;
  if (syntax || address) {
    notes.rank("gloo-syntax", r,
               "GLOO_SOCKET_IFNAME=" + *value +
                   (syntax ? " is in NCCL's syntax" : " is an address") +
                   ": Gloo takes plain names of interfaces, and fails",
               fix);
    return;
  }
  if (r.interfaces.empty()) return;
  for (const std::string& name : words_between(*value, ',')) {
    const auto at = r.interfaces.find(name);
    if (at == r.interfaces.end() || !at->second)
      notes.rank("gloo-interface", r,
                 "GLOO_SOCKET_IFNAME names " + name +
                     (at == r.interfaces.end() ? ", which this node does not have"
                                               : ", which has no address or does not run"),
                 fix);
  }
}

const char* vendor_of(const RankFacts& r) {
  return r.gpus.empty() ? "" : r.gpus.begin()->second.vendor.c_str();
}

// The second mask numbers what the first one left. All of it, in order, changes nothing.
void look_at_masks(const RankFacts& r, Notes& notes) {
  const std::string* first = variable(r, "ROCR_VISIBLE_DEVICES");
  if (!first || std::string_view(vendor_of(r)) != "amd") return;
  const size_t left = words_between(*first, ',').size();
  for (const char* name : {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"}) {
    const std::string* second = variable(r, name);
    if (!second) continue;
    List all;
    for (size_t i = 0; i < left; ++i) all.push_back(std::to_string(i));
    if (words_between(*second, ',') == all) continue;
    notes.rank(
        "mask-twice", r,
        std::string("ROCR_VISIBLE_DEVICES and ") + name +
            " are both set: the second numbers what the first has left, and the rank sees "
            "other GPUs than meant, or none",
        std::string("unset ") + name + "; --gpu-bind-visible sets ROCR_VISIBLE_DEVICES alone",
        "ROCR_VISIBLE_DEVICES=" + *first + ", " + name + '=' + *second);
    return;
  }
}

void look_at_order(const RankFacts& r, Notes& notes) {
  const std::string* mask = variable(r, "CUDA_VISIBLE_DEVICES");
  const std::string* order = variable(r, "CUDA_DEVICE_ORDER");
  if (!mask || std::string_view(vendor_of(r)) != "nvidia" || (order && *order == "PCI_BUS_ID"))
    return;
  const List words = words_between(*mask, ',');
  if (std::any_of(words.begin(), words.end(), is_number))
    notes.rank("cuda-order", r,
               "CUDA_VISIBLE_DEVICES counts GPUs, and CUDA counts the fastest first: with GPUs of "
               "several models these are others than Slurm meant",
               "CUDA_DEVICE_ORDER=PCI_BUS_ID");
}

void look_at_files(const RankFacts& r, Notes& notes) {
  for (const char* name : {"NCCL_TOPO_FILE", "NCCL_GRAPH_FILE"}) {
    const std::string* path = variable(r, name);
    const auto there = r.files.find(name);
    if (path && there != r.files.end() && !there->second)
      notes.rank("topo-file-missing", r,
                 std::string(name) + '=' + *path +
                     " cannot be read where the rank runs, and NCCL does not say so",
                 "mount the file into the container, or unset the variable");
  }
}

void look_at_switches(const RankFacts& r, Notes& notes) {
  const bool verbs = std::any_of(r.ports.begin(), r.ports.end(),
                                 [](const auto& p) { return p.second.used && p.second.verbs; });
  if (verbs && is_on(r, "NCCL_IB_DISABLE"))
    notes.rank("ib-off", r, "NCCL_IB_DISABLE turns off the node's fabric ports",
               "unset NCCL_IB_DISABLE");
  for (const char* name : {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"})
    if (r.local_ranks > 1 && is_on(r, name))
      notes.rank(
          "p2p-off", r,
          std::string(name) + " keeps the ranks of a node from the fastest way to each other",
          std::string("unset ") + name);
  const std::string* bind = variable(r, "OMP_PROC_BIND");
  const bool pinned = bind ? *bind != "false" && *bind != "FALSE" && !bind->empty()
                           : variable(r, "OMP_PLACES") != nullptr;
  if (pinned && !r.gpus.empty())
    notes.rank("omp-pinned", r,
               "OMP_PROC_BIND or OMP_PLACES pins the main thread to one place, and with it the "
               "threads that NCCL and data loaders start",
               "unset both: the rank's mask is enough");
}

}  // namespace

void look_at_environment(const DoctorJob& job, Notes& notes) {
  for (const DoctorNode& node : job.nodes)
    for (const RankFacts* r : node.ranks) {
      look_at_nccl_sockets(job, *r, notes);
      look_at_gloo(*r, notes);
      look_at_masks(*r, notes);
      look_at_order(*r, notes);
      look_at_files(*r, notes);
      look_at_switches(*r, notes);
    }
}

}  // namespace trainlaunch
