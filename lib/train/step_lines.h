// Files of one JSON object a line, each about a step: what a run keeps of itself besides
// checkpoints.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/base.h"

namespace trainlaunch {

class StepLines {
 public:
  // For appending. Lines of steps after `step` belong to a past that is being repeated, and go;
  // those of a run that begins anew (step 0) all go.
  static Result<StepLines> open(const std::string& path, uint64_t step);
  Status add(const nlohmann::json& line);

 private:
  Fd fd_;
  std::string path_;
};

// A line's object, with its "step"; discarded when it is none, as the last line of a killed run may
// be.
nlohmann::json parse_step_line(const std::string& line);

}  // namespace trainlaunch
