// The machine and its plan as a picture: one self-contained SVG file.
//
// From left to right stand the ranks, their GPUs and their ports, joined by lines in the rank's
// colour that say how near they are; around the devices the switches, memory nodes and packages
// that they belong to. Each memory node shows its cores in the colours of the ranks that have them.
// The same plan gives the same bytes.
#pragma once

#include <string>

#include "report.h"

namespace trainlaunch {

// What can be drawn and read; more of any is an error with exit_code::failed.
inline constexpr size_t max_drawn = 256;

Result<std::string> machine_svg(const Machine& machine, const std::vector<NicChoice>& nics);
Result<std::string> plan_svg(const Answer& answer);

}  // namespace trainlaunch
