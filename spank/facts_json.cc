#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <tuple>

#include "facts.h"

namespace trainlaunch {
namespace {

using json = nlohmann::ordered_json;

constexpr int version = 1;
constexpr int deepest = 8;           // of nested objects
constexpr int most_ranks = 1 << 24;  // far beyond any job: what is more is no rank

// --- Writing. ---

// What comes from files and the environment need not be UTF-8: replaced, so that this cannot throw.
std::string dump(const json& j) { return j.dump(-1, ' ', false, json::error_handler_t::replace); }

void put(json& j, const char* key, const std::string& value) {
  if (!value.empty()) j[key] = value;
}

template <class T>
void put(json& j, const char* key, const std::optional<T>& value) {
  if (value) j[key] = *value;
}

// A list with an order: its positions are the keys.
json numbered(const std::vector<std::string>& list) {
  json out = json::object();
  for (size_t i = 0; i < list.size(); ++i) out[std::to_string(i)] = list[i];
  return out;
}

json object_of(const GpuFacts& g) {
  json j = {{"index", g.index}, {"vendor", g.vendor}};
  put(j, "numa", g.numa);
  put(j, "cpus", g.cpus);
  put(j, "socket", g.socket);
  put(j, "device", g.device);
  put(j, "opens", g.opens);
  j["near"] = g.near;
  return j;
}

json object_of(const PortFacts& p) {
  json j = {{"up", p.up}, {"verbs", p.verbs}, {"used", p.used}};
  put(j, "numa", p.numa);
  put(j, "link_layer", p.link_layer);
  if (p.gbps > 0) j["rate_gbps"] = p.gbps;
  put(j, "opens", p.opens);
  put(j, "why", p.why);
  return j;
}

json object_of(const PlannedFacts& p) {
  json j = {{"from", p.from}};
  put(j, "digest", p.digest);
  j["gpus"] = numbered(p.gpus);
  j["nics"] = numbered(p.ports);
  put(j, "gpu_nic", p.gpu_port);
  put(j, "cpus", p.cpus);
  put(j, "mems", p.mems);
  return j;
}

// What every part has.
json identity(const RankFacts& f) {
  json j = {{"version", version}, {"rank", f.rank}, {"node", f.node}};
  put(j, "job", f.job);
  put(j, "step", f.step);
  return j;
}

json object_of(const RankFacts& f) {
  json j = identity(f);
  j["program"] = f.program;
  j["host"] = f.host;
  j["ranks"] = f.ranks;
  j["local_rank"] = f.local_rank;
  j["local_ranks"] = f.local_ranks;
  j["cpus"] = f.cpus;
  j["cores"] = f.cores;
  j["mem_policy"] = f.mem_policy;
  put(j, "mem_nodes", f.mem_nodes);
  put(j, "mems_allowed", f.mems_allowed);
  put(j, "memlock", f.memlock);
  j["visible"] = numbered(f.visible);
  put(j, "plan", f.plan_applied);
  if (f.planned) j["planned"] = object_of(*f.planned);
  j["matches"] = f.planned ? f.differs.empty() : false;
  j["differs"] = f.differs;
  j["env"] = f.env;
  j["files"] = f.files;
  j["warnings"] = f.warnings;
  j["source"] = f.source;
  put(j, "machine_cpus", f.machine_cpus);
  j["numa_nodes"] = f.numa_nodes;
  j["virtual"] = f.virtual_machine;
  for (const auto& [id, gpu] : f.gpus) j["gpus"][id] = object_of(gpu);
  for (const auto& [name, port] : f.ports) j["nics"][name] = object_of(port);
  j["interfaces"] = f.interfaces;
  return j;
}

// Deals the members of an object to objects that each fit into a line.
class Parts {
 public:
  Parts(json identity, size_t limit) : identity_(std::move(identity)), limit_(limit) { open(); }

  // A leaf stands below the members named by `path`.
  void add(std::vector<std::string>& path, const json& value) {
    if (value.is_object() && !value.empty()) {
      for (const auto& [key, below] : value.items()) {
        path.push_back(key);
        add(path, below);
        path.pop_back();
      }
      return;
    }
    json leaf = value;
    cut(leaf);
    size_t size = dump(leaf).size() + 1;
    for (const std::string& name : path) size += dump(json(name)).size() + 3;
    if (size_ + size > limit_ && !fresh_) close();
    json* at = &part_;
    for (const std::string& name : path) at = &(*at)[name];
    *at = std::move(leaf);
    size_ += size;
    fresh_ = false;
  }

  std::string take() {
    close();
    return std::move(out_);
  }

 private:
  void open() {
    part_ = identity_;
    size_ = dump(part_).size() + 1;
    fresh_ = true;
  }
  void close() {
    out_ += dump(part_) + '\n';
    open();
  }
  // A value longer than half a line cannot be told; its start can. Escapes may double it.
  void cut(json& leaf) const {
    if (!leaf.is_string()) return;
    std::string text = leaf.get<std::string>();
    const size_t most = limit_ / 2;
    if (dump(leaf).size() <= most) return;
    do text.resize(std::min(text.size() * 3 / 4, most));
    while (dump(json(text)).size() > most);
    leaf = text + "...";
  }

  const json identity_;
  const size_t limit_;
  json part_;
  size_t size_ = 0;
  bool fresh_ = true;
  std::string out_;
};

// --- Reading. ---

// What is missing, or of another type, counts as unknown.
const json& member(const json& j, const char* key) {
  static const json none;
  if (!j.is_object()) return none;
  const auto at = j.find(key);
  return at == j.end() ? none : *at;
}

std::string text_of(const json& j) { return j.is_string() ? j.get<std::string>() : std::string(); }
std::string text(const json& j, const char* key) { return text_of(member(j, key)); }

std::optional<std::string> optional_text(const json& j, const char* key) {
  const json& m = member(j, key);
  if (!m.is_string()) return std::nullopt;
  return m.get<std::string>();
}

std::optional<long long> whole(const json& j, const char* key) {
  const json& m = member(j, key);
  if (!m.is_number_integer()) return std::nullopt;
  return m.get<long long>();
}

int small(const json& j, const char* key, int otherwise) {
  const auto n = whole(j, key);
  return n && *n >= 0 && *n < most_ranks ? static_cast<int>(*n) : otherwise;
}

std::optional<int> node_number(const json& j) {
  const int n = small(j, "numa", -1);
  return n < 0 ? std::nullopt : std::optional(n);
}

std::optional<bool> optional_truth(const json& j, const char* key) {
  const json& m = member(j, key);
  if (!m.is_boolean()) return std::nullopt;
  return m.get<bool>();
}

bool truth(const json& j, const char* key, bool otherwise) {
  return optional_truth(j, key).value_or(otherwise);
}

std::vector<std::string> list(const json& j, const char* key) {
  const json& m = member(j, key);
  std::vector<std::string> out;
  if (!m.is_object()) return out;
  for (size_t i = 0; i < m.size(); ++i) {
    const auto at = m.find(std::to_string(i));
    if (at == m.end()) break;
    out.push_back(text_of(*at));
  }
  return out;
}

std::map<std::string, std::string> texts(const json& j, const char* key) {
  std::map<std::string, std::string> out;
  const json& m = member(j, key);
  if (m.is_object())
    for (const auto& [name, value] : m.items()) out[name] = text_of(value);
  return out;
}

std::map<std::string, bool> truths(const json& j, const char* key) {
  std::map<std::string, bool> out;
  const json& m = member(j, key);
  if (m.is_object())
    for (const auto& [name, value] : m.items()) out[name] = truth(m, name.c_str(), false);
  return out;
}

GpuFacts gpu_from(const json& j) {
  GpuFacts g;
  g.numa = node_number(j);
  g.index = small(j, "index", 0);
  g.vendor = text(j, "vendor");
  g.cpus = text(j, "cpus");
  g.socket = text(j, "socket");
  g.device = text(j, "device");
  g.opens = optional_truth(j, "opens");
  g.near = texts(j, "near");
  return g;
}

PortFacts port_from(const json& j) {
  PortFacts p;
  p.numa = node_number(j);
  p.link_layer = text(j, "link_layer");
  const json& rate = member(j, "rate_gbps");
  if (rate.is_number()) p.gbps = rate.get<double>();
  p.up = truth(j, "up", true);
  p.verbs = truth(j, "verbs", false);
  p.opens = optional_truth(j, "opens");
  p.used = truth(j, "used", true);
  p.why = text(j, "why");
  return p;
}

RankFacts facts_from(const json& j) {
  RankFacts f;
  f.program = text(j, "program");
  f.node = text(j, "node");
  f.host = text(j, "host");
  f.job = text(j, "job");
  f.step = text(j, "step");
  f.rank = small(j, "rank", 0);
  f.ranks = small(j, "ranks", 1);
  f.local_rank = small(j, "local_rank", 0);
  f.local_ranks = small(j, "local_ranks", 1);
  f.cpus = text(j, "cpus");
  f.cores = small(j, "cores", 0);
  f.mem_policy = text(j, "mem_policy");
  f.mem_nodes = text(j, "mem_nodes");
  f.mems_allowed = text(j, "mems_allowed");
  f.memlock = whole(j, "memlock");
  f.visible = list(j, "visible");
  f.env = texts(j, "env");
  f.source = text(j, "source");
  f.machine_cpus = text(j, "machine_cpus");
  f.numa_nodes = small(j, "numa_nodes", 0);
  if (const json& gpus = member(j, "gpus"); gpus.is_object())
    for (const auto& [id, gpu] : gpus.items()) f.gpus[id] = gpu_from(gpu);
  if (const json& ports = member(j, "nics"); ports.is_object())
    for (const auto& [name, port] : ports.items()) f.ports[name] = port_from(port);
  f.interfaces = truths(j, "interfaces");
  f.files = truths(j, "files");
  f.virtual_machine = truth(j, "virtual", false);
  f.plan_applied = text(j, "plan");
  if (const json& p = member(j, "planned"); p.is_object())
    f.planned = PlannedFacts{text(p, "from"),         text(p, "digest"),  list(p, "gpus"),
                             list(p, "nics"),         text(p, "gpu_nic"), optional_text(p, "cpus"),
                             optional_text(p, "mems")};
  f.differs = texts(j, "differs");
  f.warnings = texts(j, "warnings");
  return f;
}

// Without the label of `srun --label`, "12: ".
std::string_view unlabelled(std::string_view line, std::string_view& label) {
  const size_t first = std::min(line.find_first_not_of(' '), line.size());
  const size_t end = line.find_first_not_of("0123456789", first);
  if (end == std::string_view::npos || end == first || line.substr(end, 2) != ": ") return line;
  label = line.substr(first, end - first);
  return line.substr(end + 2);
}

// A line is one JSON object, not deeper nested than ours are.
std::optional<json> parse_line(std::string_view line) {
  bool flat = true;
  const auto shallow = [&](int depth, json::parse_event_t, json&) {
    flat = flat && depth <= deepest;
    return flat;
  };
  json j = json::parse(line.begin(), line.end(), shallow, false);
  if (!flat || j.is_discarded() || !j.is_object()) return std::nullopt;
  return j;
}

}  // namespace

std::string facts_json(const RankFacts& facts, size_t limit) {
  const json whole = object_of(facts);
  std::string line = dump(whole);
  if (limit == 0 || line.size() <= limit) return line + '\n';
  Parts parts(identity(facts), limit);
  std::vector<std::string> path;
  parts.add(path, whole);
  return parts.take();
}

Result<std::vector<RankFacts>> parse_facts(std::string_view text, const std::string& name) {
  using Key = std::tuple<std::string, std::string, int, std::string>;
  std::map<Key, json> ranks;
  std::map<std::string_view, std::string> open;  // label -> the start of a line that was cut
  int number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view label, line = unlabelled(text.substr(at, end - at), label);
    at = end + 1;
    ++number;
    std::string joined;
    if (const auto before = open.find(label); before != open.end()) {
      joined = before->second.append(line);
      line = joined;
    }
    // What a login script or a module prints is not ours.
    if (line.empty() || line.front() != '{') continue;
    const auto j = parse_line(line);
    if (!j && !label.empty()) {
      open[label] = line;  // srun gives each piece of a long line a label of its own
      continue;
    }
    open.erase(label);
    if (!j || small(*j, "version", 0) == 0)
      return fail(
          name + ':' + std::to_string(number) + ": no object of `gpu-bind check --format=json`",
          exit_code::usage);
    if (const int v = small(*j, "version", 0); v != version)
      return fail(name + ':' + std::to_string(number) + ": version " + std::to_string(v) +
                      " of what check prints; this gpu-bind reads version " +
                      std::to_string(version),
                  exit_code::usage);
    const Key key{trainlaunch::text(*j, "job"), trainlaunch::text(*j, "step"), small(*j, "rank", 0),
                  trainlaunch::text(*j, "node")};
    json& rank = ranks[key];
    rank.merge_patch(*j);
  }
  if (!open.empty())
    return fail(name + ": the output of rank " + std::string(open.begin()->first) + " is cut off",
                exit_code::usage);
  if (ranks.empty())
    return fail(name + ": no object of `gpu-bind check --format=json` in it", exit_code::usage);
  std::vector<RankFacts> out;
  for (const auto& [key, j] : ranks) out.push_back(facts_from(j));
  return out;
}

}  // namespace trainlaunch
