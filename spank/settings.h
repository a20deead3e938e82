// What can be set in gpu-bind.conf, and, but for the site's own keys, on the command line: one
// definition of each key serves both.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bind/bind.h"
#include "env/env.h"

namespace trainlaunch {

enum class BindSwitch : uint8_t { on_request, always, off };
enum class Report : uint8_t { none, summary, full, json, doctor };

struct Settings {
  BindSwitch bind = BindSwitch::on_request;
  Policy policy;
  Source nic_from = Source::topology;  // who set `nic`
  EnvMode env = EnvMode::keep;
  Report report = Report::none;
  bool strict = false;
  int timeout_ms = 2000;  // for the whole answer; the plugin ends what takes longer

  // For this node; empty: none.
  std::string topology;        // a file that replaces the live machine
  bool topology_check = true;  // only if its CPUs are this machine's
  std::string nccl_topology;   // a file for NCCL_TOPO_FILE, if it is of this machine

  std::vector<SiteVariable> variables;
};

inline constexpr const char* default_config = TL_SYSCONFDIR "/slurm/gpu-bind.conf";

// Sets what has one value for all nodes. An error names the key, the value and what is possible.
Status set_option(Settings& settings, std::string_view key, std::string_view value,
                  Source from = Source::option);

// Reads "key = value" lines for the node called `node`; '#' starts a comment. Errors, a key given
// twice among them, are usage errors, "file:line: what".
Status parse_config(Settings& settings, const std::string& text, const std::string& file,
                    std::string_view node);

// The same from the site's file, which only root may be able to change (trusted.h). A missing file
// is an error only if it `must_exist`.
Status read_config(Settings& settings, const std::string& path, bool must_exist,
                   std::string_view node);

}  // namespace trainlaunch
