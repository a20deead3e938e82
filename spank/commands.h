// The commands of gpu-bind; they print to standard output.
#pragma once

#include "arguments.h"

namespace trainlaunch {

Status print_machine(const Arguments& arguments);  // show
Status print_plan(const Arguments& arguments);     // plan

}  // namespace trainlaunch
