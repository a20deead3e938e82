// Host lists in Slurm's syntax: "n[1-2,07],login,10.0.0.[1-4]".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace trainlaunch {

// The first `limit` names of `list`. An error is a usage error.
Result<std::vector<std::string>> expand_hosts(std::string_view list, size_t limit);

// Is `host` one of `list`? Costs nothing more for long ranges. A list that is none holds no one.
bool hosts_contain(std::string_view list, std::string_view host);

}  // namespace trainlaunch
