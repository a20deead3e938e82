// Which of this machine's addresses the traffic to other nodes should use.
#pragma once

#include <string>
#include <vector>

#include "base/base.h"

namespace trainlaunch {

struct LocalAddress {
  std::string interface, ip;  // numeric
};

// Of the interfaces that are up, IPv4 first; none that are local to their link only.
std::vector<LocalAddress> own_addresses();

// `wanted`: an interface, or empty for the one that leads to `peer`, a rank elsewhere that has
// these addresses.
Result<std::string> choose_address(const std::string& wanted, const std::vector<LocalAddress>& own,
                                   const std::vector<std::string>& peer);

}  // namespace trainlaunch
