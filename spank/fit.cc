#include "fit.h"

#include <algorithm>
#include <fstream>
#include <set>

namespace trainlaunch {
namespace {

std::vector<int> online(const char* what) {
  std::ifstream in(std::string("/sys/devices/system/") + what + "/online");
  std::string line;
  std::getline(in, line);
  return parse_list(line, max_cpu).value_or(std::vector<int>());
}

std::set<std::pair<PciId, std::optional<int>>> functions(const Machine& m) {
  std::set<std::pair<PciId, std::optional<int>>> out;
  for (const Gpu& g : m.gpus) out.emplace(g.pci, g.partition);
  return out;
}

}  // namespace

std::string why_unlike(const Machine& file, const Machine& live) {
  if (file.cpus != live.cpus)
    return "has CPUs " + to_list(file.cpus) + ", this machine " + to_list(live.cpus);
  const auto theirs = functions(file), ours = functions(live);
  if (ours.empty()) return "";
  if (theirs.size() != ours.size())
    return "has " + std::to_string(theirs.size()) + " GPUs, this machine " +
           std::to_string(ours.size());
  if (file.made_up_ids) return "";
  for (const auto& [pci, partition] : theirs)
    if (!ours.contains({pci, partition}))
      return "has a GPU " + to_string(pci) + ", which this machine has not";
  return "";
}

Status all_applied(const Plan& plan) {
  for (const Warning& w : plan.warnings)
    if (w.code == "not-applied" || w.code == "cores-unknown")
      return fail(w.message + " [" + w.code + "; mend it with: " + w.fix + ']');
  return {};
}

void fit_to_kernel(Plan& plan) {
  CpuSet cpus;
  for (int c : online("cpu")) cpus.set(static_cast<size_t>(c));
  const std::vector<int> nodes = online("node");
  std::vector<int> masks, mems;
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    RankPlan& r = plan.ranks[i];
    if (!r.keep_cpus) {
      const CpuSet real = r.cpus & cpus;
      if (real != r.cpus) masks.push_back(static_cast<int>(i));
      r.cpus = real;
      r.keep_cpus = real.none();
    }
    if (r.mem && std::find(nodes.begin(), nodes.end(), *r.mem) == nodes.end()) {
      mems.push_back(static_cast<int>(i));
      r.mem.reset();
    }
  }
  if (masks.empty() && mems.empty()) return;
  std::string what;
  if (!masks.empty()) what = "CPUs of ranks " + to_list(masks);
  if (!mems.empty())
    what += (what.empty() ? "" : " and ") + ("memory nodes of ranks " + to_list(mems));
  plan.warnings.push_back(
      {"not-applied", what + " are not on this machine: those parts of the plan are not applied",
       "a topology file of this machine in gpu-bind.conf", false});
}

}  // namespace trainlaunch
