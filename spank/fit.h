// A plan made for a topology file, fitted to the kernel that has to apply it.
#pragma once

#include <string>

#include "bind/bind.h"

namespace trainlaunch {

// Takes out of the plan CPUs and memory nodes that are not online here, and adds one warning that
// names what cannot be applied.
void fit_to_kernel(Plan& plan);

// The error for --gpu-bind-strict=yes where the plan leaves alone what it cannot apply.
Status all_applied(const Plan& plan);

// Why a site's file is not of this machine, "has CPUs 0-3, this machine 0-7"; empty: it is. GPUs
// are compared where the machine shows its own; how many, where the file has no PCI functions.
std::string why_unlike(const Machine& file, const Machine& live);

}  // namespace trainlaunch
