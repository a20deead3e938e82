// The doctor before the job: what its rules find in ranks that have exactly what is planned.
#pragma once

#include "doctor.h"
#include "report.h"

namespace trainlaunch {

// `environment`: what the ranks have before the plan is applied, as far as it is known.
std::vector<Finding> diagnose_plan(const Answer& answer, const std::string& node,
                                   const std::map<std::string, std::string>& environment);

}  // namespace trainlaunch
