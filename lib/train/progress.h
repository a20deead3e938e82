// The lines about steps: how far, how well, how fast.
#pragma once

#include <cstdint>
#include <string>

#include "base/base.h"
#include "train/metrics.h"

namespace trainlaunch {

class Progress {
 public:
  // Of a step of the whole job: how many tokens, how much arithmetic each token is, and how much
  // the ranks together could do in a second.
  struct Work {
    double tokens = 0, flops_per_token = 0, peak_flops = 0;
  };
  Progress(uint64_t last_step, const Work& work) : last_step_(last_step), work_(work) {}

  void took(Clock::duration time) {
    busy_ += time;
    ++steps_;
  }
  // The line about the last step, whose speed is the mean since the line before it, and goes into
  // the record.
  std::string line(StepRecord& record);

 private:
  uint64_t last_step_;
  Work work_;
  Seconds busy_{0};  // of the steps since the last line
  int steps_ = 0;
};

}  // namespace trainlaunch
