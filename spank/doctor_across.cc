// The machine that hides itself, the plan's own warnings, and nodes against each other.
#include <algorithm>

#include "doctor_parts.h"

namespace trainlaunch {
namespace {

// In GPU_BIND_PLAN, behind the digest of the whole plan; bind.h.
constexpr size_t rails_at = 32, rails_digits = 16;

void look_at_locality(const DoctorNode& node, Notes& notes) {
  const RankFacts& m = node.machine();
  if (m.gpus.empty() || m.source == "none") return;
  const bool hidden = std::any_of(m.gpus.begin(), m.gpus.end(),
                                  [](const auto& g) { return g.second.cpus.empty(); });
  // A machine of several GPUs has more than one memory node, or PCI switches, in reality.
  const bool flat =
      m.virtual_machine && m.numa_nodes < 2 && m.gpus.size() > 1 &&
      std::none_of(m.gpus.begin(), m.gpus.end(), [](const auto& g) {
        return std::any_of(g.second.near.begin(), g.second.near.end(),
                           [](const auto& n) { return n.second == "PIX" || n.second == "PXB"; });
      });
  if (hidden || flat)
    notes.node(
        "locality-unknown", node,
        m.virtual_machine
            ? "this virtual machine does not say which CPUs and ports its GPUs are near"
            : "this machine does not say which CPUs its GPUs are near",
        "topology= in gpu-bind.conf with a file of the real machine, and NCCL_TOPO_FILE for "
        "NCCL",
        std::to_string(m.gpus.size()) + " GPUs, " + std::to_string(m.numa_nodes) + " memory nodes");
}

// What the plan warned of and no rule here finds by itself.
void pass_on(const DoctorNode& node, Notes& notes) {
  struct Known {
    const char *code, *fix;
  };
  constexpr Known known[] = {
      {"cores-few", "--cpus-per-task"},
      {"cores-unknown",
       "CPUs, Sockets, CoresPerSocket and ThreadsPerCore in slurm.conf as `slurmd "
       "-C` prints them; a topology file, if there is one, that names the CPUs"},
      {"gpus-idle", "--ntasks-per-node as many as GPUs"},
      {"not-applied", "a topology file of this machine in gpu-bind.conf"},
      {"topology-mismatch", "make the file on a node of this kind: lstopo --of xml"},
  };
  for (const Known& k : known)
    for (const RankFacts* r : node.ranks)
      if (const auto at = r->warnings.find(k.code); at != r->warnings.end()) {
        notes.node(k.code, node, at->second, k.fix);
        break;
      }
}

// The same in the words of people: "8 x infiniband 400 Gb/s".
std::string ports_of(const DoctorNode& node) {
  std::map<std::string, int> kinds;
  for (const auto& [name, p] : node.machine().ports)
    if (p.used)
      ++kinds[(p.link_layer.empty() ? "unknown" : p.link_layer) +
              (p.gbps > 0 ? ' ' + std::to_string(static_cast<int>(p.gbps)) + " Gb/s" : "")];
  List out;
  for (const auto& [kind, n] : kinds) out.push_back(std::to_string(n) + " x " + kind);
  return out.empty() ? "none" : join(out);
}

// Nodes in groups that have the same answer, "n1, n2: A; n3: B"; empty when all have.
std::string groups(const DoctorJob& job, const std::function<std::string(const DoctorNode&)>& of,
                   bool tell = true) {
  constexpr size_t most_names = 6;
  std::map<std::string, List> nodes;
  for (const DoctorNode& node : job.nodes)
    if (const std::string answer = of(node); !answer.empty()) nodes[answer].push_back(node.name);
  if (nodes.size() < 2) return "";
  List out;
  for (auto& [answer, names] : nodes) {
    const size_t more = names.size() > most_names ? names.size() - most_names : 0;
    names.resize(names.size() - more);
    out.push_back(join(names) + (more ? " and " + std::to_string(more) + " more" : "") +
                  (tell ? ": " + answer : ""));
  }
  return join(out, tell ? "; " : " against ");
}

void compare_ports(const DoctorJob& job, Notes& notes) {
  const auto known = [](const DoctorNode& node) {
    return node.machine().source == "none" || node.machine().gpus.empty() ? std::string()
                                                                          : ports_of(node);
  };
  if (const std::string differ = groups(job, known); !differ.empty())
    notes.job("nics-differ",
              "nodes use different ports: NCCL may hang, or runs at the pace of the poorest (" +
                  differ + ')',
              "--exclude the odd nodes, or --gpu-bind-nic=list:NAMES with what all have");
}

// The place that each rank's port has among the used ones, equal names or not.
std::string rails_of(const DoctorNode& node) {
  const RankFacts& m = node.machine();
  const std::string& digest = !m.plan_applied.empty() ? m.plan_applied
                              : m.planned             ? m.planned->digest
                                                      : m.plan_applied;
  if (digest.size() < rails_at + rails_digits) return "";
  // Other counts of ranks have other rails, and nothing follows from that.
  return std::to_string(m.local_ranks) + ' ' + digest.substr(rails_at, rails_digits);
}

void compare_rails(const DoctorJob& job, Notes& notes) {
  std::map<int, DoctorJob> by_count;
  for (const DoctorNode& node : job.nodes)
    by_count[node.machine().local_ranks].nodes.push_back(node);
  for (const auto& [count, part] : by_count)
    if (const std::string differ = groups(part, rails_of, false); !differ.empty())
      notes.job(
          "rails-differ",
          "local ranks of equal number have ports on different rails: their traffic crosses "
          "switches (" +
              differ + ')',
          "compare `gpu-bind plan` on these nodes; --exclude the odd ones, or NCCL_CROSS_NIC=1");
}

void compare_programs(const DoctorJob& job, Notes& notes) {
  const auto program = [](const DoctorNode& node) { return node.machine().program; };
  if (const std::string differ = groups(job, program); !differ.empty())
    notes.job(
        "versions-differ",
        "nodes have different versions of gpu-bind, which may plan differently (" + differ + ')',
        "install one version on all nodes");
  // Which machine a node is, is its own matter; that only some are planned is not.
  const auto applied = [](const DoctorNode& node) {
    const bool all = std::all_of(node.ranks.begin(), node.ranks.end(),
                                 [](const RankFacts* r) { return !r->plan_applied.empty(); });
    return std::string(all ? "planned" : "not planned");
  };
  if (const std::string differ = groups(job, applied); !differ.empty())
    notes.job("plan-partial", "some nodes are bound and others are not (" + differ + ')',
              "look into the job's standard error for what gpu-bind says of them, and for "
              "gpu_bind.so in their plugstack.conf");
}

// Every node has devices of its own, so these may differ.
bool may_differ(const std::string& name) {
  for (const char* own :
       {"NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_DEBUG_FILE",
        "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE", "NCCL_HOSTID", "NCCL_TOPO_DUMP_FILE_RANK"})
    if (name == own) return true;
  return !name.starts_with("NCCL_");
}

void compare_environment(const DoctorJob& job, Notes& notes) {
  std::set<std::string> names;
  for (const DoctorNode& node : job.nodes)
    for (const auto& [name, value] : node.machine().env)
      if (!may_differ(name)) names.insert(name);
  for (const std::string& name : names) {
    const auto value = [&](const DoctorNode& node) {
      const std::string* v = variable(node.machine(), name.c_str());
      return v ? '=' + *v : "not set";
    };
    if (const std::string differ = groups(job, value); !differ.empty())
      notes.job("env-differs", name + " differs between nodes (" + differ + ')',
                "set it before srun, the same for all; look into ~/.bashrc and task prologs");
  }
}

// A job's answers that did not come: ranks that died, or were not asked.
void count_ranks(const DoctorJob& job, Notes& notes) {
  size_t heard = 0;
  int all = 0;
  std::set<std::pair<std::string, std::string>> steps;
  for (const DoctorNode& node : job.nodes)
    for (const RankFacts* r : node.ranks) {
      ++heard;
      all = std::max(all, r->ranks);
      steps.emplace(r->job, r->step);
    }
  if (steps.size() == 1 && static_cast<size_t>(all) > heard && heard > 1)
    notes.job("ranks-unheard",
              "of " + std::to_string(all) + " ranks " + std::to_string(heard) + " were heard",
              "srun --kill-on-bad-exit=0, so that no rank ends the others");
}

}  // namespace

void look_across(const DoctorJob& job, Notes& notes) {
  for (const DoctorNode& node : job.nodes) {
    look_at_locality(node, notes);
    pass_on(node, notes);
  }
  count_ranks(job, notes);
  if (!job.several_nodes()) return;
  compare_ports(job, notes);
  compare_rails(job, notes);
  compare_programs(job, notes);
  compare_environment(job, notes);
}

}  // namespace trainlaunch
