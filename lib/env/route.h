// Which network interface leads to the job's other nodes.
#pragma once

#include <string>
#include <string_view>

#include "base/time.h"

namespace trainlaunch {

struct Route {
  std::string interface;      // empty: nothing to say
  std::string why;            // the route, or why there is none
  bool several_nics = false;  // more than one network card is up with an address
};

// Resolves a node of `list` other than `self` and asks the kernel which interface leads there. The
// lookup runs in a child process, which is killed at the deadline: a resolver can hang.
Route route_to_peer(std::string_view list, const std::string& self, Deadline deadline);

}  // namespace trainlaunch
