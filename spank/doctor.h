// What is silently wrong with a job, and the flag that mends it.
//
//   findings = diagnose(facts)
//
// is a pure function of what `gpu-bind check` saw in the job's ranks (facts.h): all of them, or
// some. It compares each rank with its machine, the ranks of a node with each other, and the nodes.
// Equal findings of several ranks are one, with the ranks named.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "facts.h"

namespace trainlaunch {

// error: it fails, or is several times slower than it should be. warning: it may be. advice: it
// works, but could be better or safer.
enum class Severity : uint8_t { error, warning, advice };
const char* name_of(Severity severity);

struct Finding {
  std::string code;
  Severity severity = Severity::warning;
  std::string who;  // "n1 ranks 0-3", "n1, n2"; empty: the whole job
  std::string message, fix;
};

// Worst first.
std::vector<Finding> diagnose(const std::vector<RankFacts>& facts);

struct FindingCode {
  const char* code;
  Severity severity;
};
std::span<const FindingCode> finding_codes();

std::string findings_text(const std::vector<Finding>& findings, const std::vector<RankFacts>& of);
std::string findings_json(const std::vector<Finding>& findings, const std::vector<RankFacts>& of);

}  // namespace trainlaunch
