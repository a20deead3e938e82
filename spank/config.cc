// gpu-bind.conf: the keys that only a site sets, and the file's form. settings.h is the front door.

#include <algorithm>
#include <map>
#include <sstream>

#include "env/hosts.h"
#include "settings.h"
#include "text.h"
#include "trusted.h"
#include "wire.h"

namespace trainlaunch {
namespace {

constexpr size_t max_config = 32 * 1024 - 1;  // the plugin reads no more
constexpr size_t max_variables = 32, max_value = 1024;

tl::unexpected<Error> bad(std::string_view key, const std::string& why) {
  return fail(std::string(key.substr(0, 80)) + ": " + why, exit_code::usage);
}

// Names of ports, with * ? and [...] as in a shell, and with or without the port's number.
Status set_patterns(std::vector<std::string>& to, std::string_view key, std::string_view value) {
  std::istringstream list{std::string(value)};
  to.clear();
  for (std::string name; std::getline(list, name, ',');) {
    name.erase(0, name.find_first_not_of(" \t"));
    name.erase(name.find_last_not_of(" \t") + 1);
    if (name.empty() ||
        name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                               "0123456789_-.:*?[]!") != std::string::npos)
      return bad(key, "use names of ports or patterns such as mlx5_bond_*, with commas");
    to.push_back(name);
  }
  if (to.empty()) return bad(key, "is empty: name ports, or leave the line out");
  return {};
}

// A file for all nodes, "topology", or for those of a list, "topology.n[1-4]". The first list that
// has the node is the one that counts.
class PerNode {
 public:
  PerNode(std::string name, std::string_view node) : name_(std::move(name)), node_(node) {}

  bool owns(std::string_view key) const { return key == name_ || key.starts_with(name_ + '.'); }

  Status set(std::string& to, std::string_view key, std::string_view value) {
    if (!value.starts_with('/') || !plugin::all_printable(value))
      return bad(key, "name a file by its absolute path, or leave the line out");
    if (key == name_) {
      if (!by_list_) to = value;
      return {};
    }
    const std::string_view hosts = key.substr(name_.size() + 1);
    const auto list = expand_hosts(hosts, 1);
    if (!list) return fail(name_ + '.' + list.error().what, exit_code::usage);
    if (list->empty()) return bad(key, "needs a host list, such as " + name_ + ".n[1-4]");
    if (by_list_ || !hosts_contain(hosts, node_)) return {};
    to = value;
    by_list_ = true;
    return {};
  }

 private:
  std::string name_;
  std::string_view node_;
  bool by_list_ = false;
};

// "env.NAME" or "env.KIND.NAME".
Status set_variable(Settings& s, std::string_view key, std::string_view value) {
  SiteVariable v;
  std::string_view rest = key.substr(sizeof "env." - 1);
  if (const size_t dot = rest.find('.'); dot != std::string_view::npos) {
    v.kind = rest.substr(0, dot);
    rest.remove_prefix(dot + 1);
    std::string kinds;
    for (const char* kind : nic_kinds) kinds += (kinds.empty() ? "" : ", ") + std::string(kind);
    if (std::find(std::begin(nic_kinds), std::end(nic_kinds), v.kind) == std::end(nic_kinds))
      return bad(key, "no kind of port; use one of " + kinds);
  }
  v.name = rest;
  v.value = value;
  if (v.name == "NCCL_TOPO_FILE") return bad(key, "use nccl-topology, whose file is checked");
  if (!gpu_bind_wire::is_network_variable(v.name)) {
    std::string prefixes;
    for (const std::string_view p : gpu_bind_wire::network_prefixes)
      prefixes += (prefixes.empty() ? "" : ", ") + std::string(p) + '*';
    return bad(
        key, "not a variable that can be set; those are " + prefixes + ", but for NCCL_CONF_FILE");
  }
  if (value.empty()) return bad(key, "is empty: give a value, or leave the line out");
  if (value.size() > max_value || !plugin::all_printable(value))
    return bad(
        key, "the value must be of at most " + std::to_string(max_value) + " printable characters");
  if (s.variables.size() == max_variables)
    return bad(key, "more than " + std::to_string(max_variables) + " variables");
  s.variables.push_back(std::move(v));
  return {};
}

class Config {
 public:
  Config(Settings& settings, std::string_view node)
      : s_(settings), topology_("topology", node), nccl_topology_("nccl-topology", node) {}

  // One line without its comment.
  Status line(std::string_view line, int number) {
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) return fail("not of the form key = value");
    const std::string_view key = plugin::trim(line.substr(0, equals));
    const auto [earlier, first] = seen_.emplace(key, number);
    if (!first) return bad(key, "given before, in line " + std::to_string(earlier->second));
    return set(key, plugin::trim(line.substr(equals + 1)));
  }

 private:
  Status set(std::string_view key, std::string_view value) {
    if (topology_.owns(key)) return topology_.set(s_.topology, key, value);
    if (nccl_topology_.owns(key)) return nccl_topology_.set(s_.nccl_topology, key, value);
    if (key.starts_with("env.")) return set_variable(s_, key, value);
    if (key == "nic-include" || key == "nic-exclude") {
      if (s_.nic_from == Source::topology) s_.nic_from = Source::site;
      return set_patterns(key == "nic-include" ? s_.policy.nic_include : s_.policy.nic_exclude, key,
                          value);
    }
    return set_option(s_, key, value, Source::site);
  }

  Settings& s_;
  PerNode topology_, nccl_topology_;
  std::map<std::string, int, std::less<>> seen_;  // and the line
};

}  // namespace

Status parse_config(Settings& settings, const std::string& text, const std::string& file,
                    std::string_view node) {
  Config config(settings, node);
  std::istringstream lines(text);
  std::string raw;
  for (int number = 1; std::getline(lines, raw); ++number) {
    const std::string_view line = plugin::trim(std::string_view(raw).substr(0, raw.find('#')));
    if (line.empty()) continue;
    if (auto s = config.line(line, number); !s)
      return fail(file + ':' + std::to_string(number) + ": " + s.error().what, exit_code::usage);
  }
  return {};
}

Status read_config(Settings& settings, const std::string& path, bool must_exist,
                   std::string_view node) {
  auto text = read_trusted(path, max_config, must_exist);
  if (!text) return forward(text);
  return parse_config(settings, *text, path, node);
}

}  // namespace trainlaunch
