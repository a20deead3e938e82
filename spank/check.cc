#include "check.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "gather.h"

namespace trainlaunch {
namespace {

using json = nlohmann::ordered_json;

bool contains(const std::vector<std::string>& list, const std::string& word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// Lists that say the same in other words, "0,1" and "0-1", are equal.
bool same_list(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const auto x = parse_cpus(a), y = parse_cpus(b);
  return x && y && *x == *y;
}

bool takes_memory(const RankFacts& f, MemMode mode) {
  const bool preferred = f.mem_policy == "preferred" || f.mem_policy == "preferred-many";
  const bool bind = f.mem_policy == "bind";
  switch (mode) {
    case MemMode::preferred:
      return preferred;
    case MemMode::bind:
      return bind;
    case MemMode::off:
      return preferred || bind;
  }
  return false;
}

std::string policy_of(const RankFacts& f) {
  return f.mem_policy + (f.mem_nodes.empty() ? "" : ' ' + f.mem_nodes);
}

void compare_variable(RankFacts& f, const Variable& v, bool ours,
                      const std::vector<std::string>& in_nccl_conf) {
  const auto has = f.env.find(v.name);
  if (has == f.env.end()) {
    if (!v.set && contains(in_nccl_conf, v.name)) return;
    f.differs[v.name] = "planned " + v.value + ", is not set";
  } else if (has->second != v.value && (v.set || ours)) {
    f.differs[v.name] = "planned " + v.value + ", has " + has->second;
  }
}

std::vector<std::string> strings(const json& j) {
  std::vector<std::string> out;
  for (const json& s : j) out.push_back(s.get<std::string>());
  return out;
}

std::string join(const std::vector<std::string>& list) {
  std::string out;
  for (const std::string& s : list) out += (out.empty() ? "" : ",") + s;
  return out.empty() ? "none" : out;
}

void take_variables(Expectation& e, const json& list) {
  // Masks are set in any case, the rest only where there is nothing: as the planner does.
  for (const auto& [name, value] : list.items())
    e.env.push_back({name, value.get<std::string>(), name.ends_with("_VISIBLE_DEVICES")});
}

}  // namespace

Result<Expectation> expect(const Answer& a, int rank) {
  if (rank < 0 || static_cast<size_t>(rank) >= a.plan.ranks.size())
    return fail("the plan has no local rank " + std::to_string(rank) + ": it is for " +
                std::to_string(a.plan.ranks.size()) + " ranks on the node");
  const RankPlan& r = a.plan.ranks[static_cast<size_t>(rank)];
  Expectation e;
  e.facts.digest = digest(a.machine, a.plan);
  for (int g : r.gpus) e.facts.gpus.push_back(to_string(a.machine.gpus[static_cast<size_t>(g)]));
  for (int n : r.nics) e.facts.ports.push_back(to_string(a.machine.nics[static_cast<size_t>(n)]));
  if (r.gpu_nic) e.facts.gpu_port = name_of(*r.gpu_nic);
  if (!r.keep_cpus) e.facts.cpus = to_list(r.cpus);
  if (r.mem && a.plan.mem != MemMode::off) {
    e.facts.mems = std::to_string(*r.mem);
    e.mem = a.plan.mem;
  }
  e.env = a.env.common;
  const auto& own = a.env.ranks[static_cast<size_t>(rank)];
  e.env.insert(e.env.end(), own.begin(), own.end());
  e.unset = a.env.unset;
  return e;
}

Result<Expectation> expect_json(const std::string& text, const std::string& name, int rank) {
  try {
    const json plan = json::parse(text);
    if (plan.at("version") != 1)
      return fail(name + ": version " + plan.at("version").dump() +
                      " of a plan; this gpu-bind reads version 1",
                  exit_code::usage);
    const json& ranks = plan.at("ranks");
    if (rank < 0 || static_cast<size_t>(rank) >= ranks.size())
      return fail(name + ": has no local rank " + std::to_string(rank) + ", only " +
                      std::to_string(ranks.size()) + " ranks",
                  exit_code::usage);
    const json& r = ranks.at(static_cast<size_t>(rank));
    Expectation e;
    e.facts.from = "file";
    e.facts.gpus = strings(r.at("gpus"));
    e.facts.ports = strings(r.at("nics"));
    if (r.at("gpu_nic").is_string()) e.facts.gpu_port = r.at("gpu_nic").get<std::string>();
    if (r.at("cpus").is_string()) e.facts.cpus = r.at("cpus").get<std::string>();
    if (r.at("mems").is_string()) e.facts.mems = r.at("mems").get<std::string>();
    take_variables(e, plan.at("env").at("common"));
    take_variables(e, plan.at("env").at("ranks").at(static_cast<size_t>(rank)));
    return e;
  } catch (const json::exception& x) {
    return fail(name + ": not what `gpu-bind plan --format=json` prints: " + x.what(),
                exit_code::usage);
  }
}

void compare(RankFacts& f, const Expectation& e, const std::vector<std::string>& in_nccl_conf) {
  f.planned = e.facts;
  f.differs.clear();
  if (e.facts.cpus && !same_list(*e.facts.cpus, f.cpus))
    f.differs["cpus"] = "planned " + *e.facts.cpus + ", has " + f.cpus;
  if (e.facts.mems && !(takes_memory(f, e.mem) && same_list(*e.facts.mems, f.mem_nodes)))
    f.differs["mems"] = "planned " + std::string(e.mem == MemMode::bind ? "bind" : "preferred") +
                        ' ' + *e.facts.mems + ", has " + policy_of(f);
  for (const std::string& id : e.facts.gpus) {
    const auto gpu = f.gpus.find(id);
    if (gpu == f.gpus.end())
      f.differs["gpu " + id] = "planned, is not in this machine";
    else if (!gpu->second.opens.value_or(true))
      f.differs["gpu " + id] = "planned, but this process may not open " + gpu->second.device;
  }
  const auto set = f.env.find("GPU_BIND_SET");
  const std::vector<std::string> ours =
      set == f.env.end() ? std::vector<std::string>() : words_between(set->second, ',');
  for (const Variable& v : e.env) compare_variable(f, v, contains(ours, v.name), in_nccl_conf);
  for (const std::string& name : e.unset)
    if (const auto has = f.env.find(name); has != f.env.end())
      f.differs[name] = "planned not to be set, has " + has->second;
  if (!f.plan_applied.empty() && !e.facts.digest.empty() && f.plan_applied != e.facts.digest)
    f.differs["plan"] =
        "the plugin applied " + f.plan_applied + ", here it comes out as " + e.facts.digest;
}

std::string check_text(const RankFacts& f, const std::string& reason) {
  std::string out = f.node + " rank " + std::to_string(f.rank) + " (local " +
                    std::to_string(f.local_rank) + " of " + std::to_string(f.local_ranks) + ")\n";
  const auto row = [&](const std::string& name, const std::string& value) {
    out += "  " + name + std::string(name.size() < 14 ? 14 - name.size() : 1, ' ') + value + '\n';
  };
  row("CPUs", f.cpus + " (" + std::to_string(f.cores) + (f.cores == 1 ? " core)" : " cores)"));
  row("memory", policy_of(f) + ", allowed " + f.mems_allowed);
  row("memlock", f.memlock ? std::to_string(*f.memlock / 1024) + " KiB" : "no limit");
  row("GPUs seen", join(f.visible));
  std::vector<std::string> closed, ports;
  for (const auto& [id, gpu] : f.gpus)
    if (!gpu.opens.value_or(true)) closed.push_back(id);
  if (!closed.empty()) row("GPUs closed", join(closed));
  for (const auto& [name, port] : f.ports)
    if (port.used)
      ports.push_back(name + (port.opens.value_or(true) ? "" : " (may not be opened)"));
  if (!f.ports.empty()) row("ports used", join(ports));
  for (const auto& [name, value] : f.env) row(name, value);
  if (!f.planned) return out + "no plan: " + reason + '\n';
  for (const auto& [what, how] : f.differs) out += "differs: " + what + ": " + how + '\n';
  const std::string plan = "the plan" + (f.planned->digest.empty() ? "" : ' ' + f.planned->digest);
  if (f.planned->from == "allocation")
    out += "no plan was applied to this rank; what differs is measured against " + plan +
           " that its allocation would get\n";
  else
    out += (f.differs.empty() ? "matches " : "does not match ") + plan + '\n';
  return out;
}

}  // namespace trainlaunch
