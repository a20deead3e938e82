// Which of this machine's addresses the traffic to other nodes should use.
#pragma once

#include <string>
#include <vector>

#include "base/base.h"
#include "boot/net.h"

namespace trainlaunch {

// `wanted`: an interface, or empty for the one that leads to `peer`, a rank elsewhere that has
// these addresses.
Result<std::string> choose_address(const std::string& wanted, const std::vector<LocalAddress>& own,
                                   const std::vector<std::string>& peer);

}  // namespace trainlaunch
