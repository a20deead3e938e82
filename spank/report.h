// What gpu-bind prints: the machine and the plan as text for people, as JSON for programs, and as
// the lines of wire.h for the plugin.
#pragma once

#include <string>

#include "bind/bind.h"
#include "doctor.h"
#include "env/env.h"
#include "settings.h"
#include "table.h"

namespace trainlaunch {

struct Answer {
  const Machine& machine;
  const Plan& plan;
  const Environment& env;
};

std::string machine_text(const Machine& machine, const std::vector<NicChoice>& nics,
                         const TextStyle& style = {});
std::string machine_json(const Machine& machine, const std::vector<NicChoice>& nics);

std::string plan_text(const Answer& answer, const TextStyle& style = {});
std::string plan_json(const Answer& answer);
// An error when the plan is too large for the plugin.
Result<std::string> plan_wire(const Answer& answer, Report report, const std::string& node,
                              const std::vector<Finding>& findings = {});
// An answer that asks for nothing.
std::string empty_wire();

}  // namespace trainlaunch
