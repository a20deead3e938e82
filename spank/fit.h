// A plan made for a topology file, fitted to the kernel that has to apply it.
#pragma once

#include "bind/bind.h"

namespace trainlaunch {

// Takes out of the plan CPUs and memory nodes that are not online here, and adds one warning that
// names what cannot be applied.
void fit_to_kernel(Plan& plan);

}  // namespace trainlaunch
