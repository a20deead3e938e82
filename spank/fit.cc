#include "fit.h"

#include <algorithm>
#include <fstream>

namespace trainlaunch {
namespace {

std::vector<int> online(const char* what) {
  std::ifstream in(std::string("/sys/devices/system/") + what + "/online");
  std::string line;
  std::getline(in, line);
  return parse_list(line, max_cpu).value_or(std::vector<int>());
}

}  // namespace

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
