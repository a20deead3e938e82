// RUN/run.log: what became of a run, a line for each start, checkpoint and end, of all its jobs.
#pragma once

#include <string>

#include "base/base.h"

namespace trainlaunch {

class RunLog {
 public:
  static Result<RunLog> open(const std::string& run);
  // With the time in front. A log that cannot be written costs nothing else.
  void add(const std::string& line) const;

 private:
  Fd fd_;
};

}  // namespace trainlaunch
