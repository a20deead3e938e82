// RUN/metrics.jsonl: what happened at which step, one JSON object a line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/base.h"
#include "train/step_lines.h"

namespace trainlaunch {

struct StepRecord {
  uint64_t step = 0;
  double loss = 0, learning_rate = 0, grad_norm = 0;
  double tokens_per_second = 0;
  double mfu = 0;  // share of the peak that the model's arithmetic makes up
};

class Metrics {
 public:
  // What is there of steps after `step` goes (StepLines::open).
  static Result<Metrics> open(const std::string& run, uint64_t step);

  Status add(const StepRecord& record);
  Status add_validation(uint64_t step, double loss);

 private:
  StepLines lines_;
};

struct Curves {
  struct Point {
    uint64_t step = 0;
    double loss = 0;
  };
  std::vector<Point> training, validation;
};
// Reads the file of a run; lines that are no records are passed over.
Result<Curves> read_metrics(const std::string& run);

}  // namespace trainlaunch
