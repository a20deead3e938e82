// What can be set in gpu-bind.conf, and, but for the site's own switches, on the command line: one
// definition of each key serves both.
#pragma once

#include <string>
#include <string_view>

#include "bind/bind.h"
#include "env/env.h"

namespace trainlaunch {

enum class BindSwitch : uint8_t { on_request, always, off };
enum class Report : uint8_t { none, summary, full, json, doctor };

struct Settings {
  BindSwitch bind = BindSwitch::on_request;
  Policy policy;
  EnvMode env = EnvMode::keep;
  Report report = Report::none;
  bool strict = false;
  std::string topology;        // a file that replaces the live machine
  bool topology_check = true;  // only if its CPUs are this machine's
  int timeout_ms = 2000;       // for the whole answer; the plugin ends what takes longer
};

inline constexpr const char* default_config = TL_SYSCONFDIR "/slurm/gpu-bind.conf";

// An error names the key, the value and what is possible.
Status set_option(Settings& settings, std::string_view key, std::string_view value);

// Reads "key = value" lines; '#' starts a comment. The file must be root's and no one else's to
// write, as must the directories above it, and no symbolic link: it steers what every user's job
// gets. Errors are usage errors, "file:line: what". A missing file is one only if `must_exist`.
Status read_config(Settings& settings, const std::string& path, bool must_exist);

}  // namespace trainlaunch
