// Which GPU of a rank uses which of its ports, for the reports that show pairs.
#pragma once

#include <vector>

#include "bind/bind.h"

namespace trainlaunch {

struct Link {
  int gpu = 0, nic = 0;  // positions in the machine
  Level level = Level::sys;
};

// Each GPU of the rank with the nearest of its ports, equally near ones dealt in turn; then each
// port that is left with its nearest GPU. Ascending by GPU, then by port.
std::vector<Link> links_of(const Machine& machine, const RankPlan& rank);

}  // namespace trainlaunch
