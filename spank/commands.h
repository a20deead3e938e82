// The commands of gpu-bind; they print to standard output.
#pragma once

#include "arguments.h"
#include "facts.h"

namespace trainlaunch {

Status print_machine(const Arguments& arguments);  // show
Status print_plan(const Arguments& arguments);     // plan
Result<bool> check(const Arguments& arguments);    // false: this rank is not as planned

// Of this process, or of `gpu-bind check` in the files named. False: there is something to mend.
Result<bool> diagnose_job(const Arguments& arguments);

// What they share. The machine to plan for, and what has to be said about it:
Result<Machine> find_machine(const Arguments& arguments, std::vector<Warning>& warnings);
// The same arguments with the step's GPUs as the machine counts them.
Arguments find_gpus(Arguments arguments, const Machine& machine, std::vector<Warning>& warnings);
Result<std::vector<RankFacts>> own_facts(const Arguments& arguments);
Environment environment_of(const Arguments& arguments, const Machine& machine, const Plan& plan);

}  // namespace trainlaunch
