#include <nlohmann/json.hpp>

#include "report.h"
#include "report_parts.h"

namespace trainlaunch {
namespace {

using json = nlohmann::ordered_json;

// Names come from files: what is not UTF-8 is replaced, so that dumping cannot throw.
std::string dump(const json& j, int indent) {
  return j.dump(indent, ' ', false, json::error_handler_t::replace);
}

json number_or_null(int n) { return n < 0 ? json(nullptr) : json(n); }

json machine_object(const Machine& m, const std::vector<NicChoice>& nics) {
  json numa = json::array(), gpus = json::array(), ports = json::array();
  for (const NumaNode& n : m.numa) numa.push_back({{"node", n.node}, {"cpus", to_list(n.cpus)}});
  for (const Gpu& g : m.gpus)
    gpus.push_back({{"pci", to_string(g.pci)},
                    {"partition", g.partition ? json(*g.partition) : json(nullptr)},
                    {"index", g.index},
                    {"uuid", g.uuid.empty() ? json(nullptr) : json(g.uuid)},
                    {"numa", number_or_null(g.place.numa)},
                    {"cpus", to_list(g.place.cpus)},
                    {"vendor", name_of(g.vendor)}});
  for (size_t i = 0; i < m.nics.size(); ++i) {
    const Nic& n = m.nics[i];
    ports.push_back(
        {{"name", n.name},
         {"port", n.port},
         {"pci", to_string(n.pci)},
         {"numa", number_or_null(n.place.numa)},
         {"link_layer",
          n.link_layer == LinkLayer::unknown ? json(nullptr) : json(name_of(n.link_layer))},
         {"rate_gbps", n.rate_gbps > 0 ? json(n.rate_gbps) : json(nullptr)},
         {"usable", nics[i].used},
         {"why", nics[i].why}});
  }
  return {{"cpus", to_list(m.cpus)}, {"numa", numa}, {"gpus", gpus}, {"nics", ports}};
}

json source_object(const Machine& m) {
  return {{"kind", m.kind}, {"file", m.file.empty() ? json(nullptr) : json(m.file)}};
}

json rank_object(const Answer& a, size_t i) {
  const RankPlan& r = a.plan.ranks[i];
  json gpus = json::array(), nics = json::array();
  for (int g : r.gpus) gpus.push_back(to_string(a.machine.gpus[static_cast<size_t>(g)].pci));
  for (int n : r.nics) nics.push_back(to_string(a.machine.nics[static_cast<size_t>(n)]));
  return {{"local_rank", i},
          {"gpus", gpus},
          {"nics", nics},
          {"gpu_nic", r.gpu_nic ? json(name_of(*r.gpu_nic)) : json(nullptr)},
          {"cpus", to_list(r.cpus)},
          {"mems", r.mem ? json(std::to_string(*r.mem)) : json(nullptr)},
          {"why", r.why}};
}

json variables(const std::vector<Variable>& list) {
  json out = json::object();
  for (const Variable& v : list) out[v.name] = v.value;
  return out;
}

// Where each variable's value comes from; ranks' own have one source for all.
json sources(const Environment& env) {
  json out = json::object();
  const auto take = [&](const std::vector<Variable>& list) {
    for (const Variable& v : list) out[v.name] = {{"source", name_of(v.source)}, {"why", v.why}};
  };
  take(env.common);
  for (const auto& list : env.ranks) take(list);
  return out;
}

json env_object(const Environment& env) {
  json ranks = json::array();
  for (const auto& list : env.ranks) ranks.push_back(variables(list));
  return {{"common", variables(env.common)},
          {"ranks", ranks},
          {"unset", env.unset},
          {"why", sources(env)},
          {"not_set", env.notes}};
}

}  // namespace

std::string machine_json(const Machine& m, const std::vector<NicChoice>& nics) {
  return dump({{"version", 1}, {"source", source_object(m)}, {"machine", machine_object(m, nics)}},
              2) +
         '\n';
}

std::string plan_json(const Answer& a) {
  json ranks = json::array(), warnings = json::array();
  for (size_t i = 0; i < a.plan.ranks.size(); ++i) ranks.push_back(rank_object(a, i));
  for (const Warning& w : a.plan.warnings)
    warnings.push_back({{"code", w.code}, {"message", w.message}, {"fix", w.fix}});
  return dump({{"version", 1},
               {"source", source_object(a.machine)},
               {"machine", machine_object(a.machine, a.plan.nics)},
               {"ranks", ranks},
               {"env", env_object(a.env)},
               {"warnings", warnings}},
              2) +
         '\n';
}

std::string rank_json(const Answer& a, size_t rank, const std::string& node) {
  json j = rank_object(a, rank);
  j.erase("why");
  json env = variables(a.env.common);
  env.update(variables(a.env.ranks[rank]));
  j["env"] = env;
  json from = json::object();
  for (const auto* list : {&a.env.common, &a.env.ranks[rank]})
    for (const Variable& v : *list) from[v.name] = name_of(v.source);
  j["env_from"] = from;
  json out = {{"node", node}};
  out.update(j);
  return dump(out, -1);
}

}  // namespace trainlaunch
