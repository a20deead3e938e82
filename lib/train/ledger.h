// Which samples each step used: RUN/ledger-<rank>.jsonl, an object a line for each micro-batch of
// that rank: "step", "first" (the number of its first sample in the run's order), and "samples"
// (their indices in the text).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/base.h"
#include "train/step_lines.h"

namespace trainlaunch {

class SampleLedger {
 public:
  // One that keeps nothing.
  SampleLedger() = default;
  // Every rank, once the run begins from `step`. What is there of steps after it goes from the
  // files of all ranks, also of those that are no more.
  static Result<SampleLedger> open(const std::string& run, int rank, int ranks, uint64_t step);

  Status add(uint64_t step, uint64_t first, std::span<const uint64_t> samples);

 private:
  bool open_ = false;
  StepLines lines_;
};

}  // namespace trainlaunch
