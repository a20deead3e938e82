// What a rank has, against what the plan gives it.
#pragma once

#include "facts.h"
#include "report.h"

namespace trainlaunch {

// The plan's part for one rank.
struct Expectation {
  PlannedFacts facts;
  MemMode mem = MemMode::off;  // off: any policy that takes memory from the planned nodes
  std::vector<Variable> env;
  std::vector<std::string> unset;  // masks that would be applied beside the plan's
};

// The part of local rank `rank`; an error if the plan has no such rank.
Result<Expectation> expect(const Answer& answer, int rank);

// The same from what `gpu-bind plan --format=json` printed. Errors are usage errors.
Result<Expectation> expect_json(const std::string& text, const std::string& name, int rank);

// Fills `planned` and `differs`. A variable that the plan only sets where there is none may differ:
// then it is the user's, or NCCL's configuration file has it (`in_nccl_conf`).
void compare(RankFacts& facts, const Expectation& expected,
             const std::vector<std::string>& in_nccl_conf);

// For people; `reason` says why there is no plan to compare with, if there is none.
std::string check_text(const RankFacts& facts, const std::string& reason);

}  // namespace trainlaunch
