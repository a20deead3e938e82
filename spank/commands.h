// The commands of gpu-bind; they print to standard output.
#pragma once

#include "arguments.h"

namespace trainlaunch {

Status print_machine(const Arguments& arguments);  // show
Status print_plan(const Arguments& arguments);     // plan
Result<bool> check(const Arguments& arguments);    // false: this rank is not as planned

// What they share. The machine to plan for, and what has to be said about it:
Result<Machine> find_machine(const Arguments& arguments, std::vector<Warning>& warnings);
Environment environment_of(const Arguments& arguments, const Machine& machine, const Plan& plan);

}  // namespace trainlaunch
