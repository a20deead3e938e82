// Samples of the text on their way to the device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/data.h"
#include "train/config.h"
#include "train/engine.h"

namespace trainlaunch {

// One batch is in the device's memory at a time: the next call overwrites it, in the stream's
// order.
class Feeder {
 public:
  Feeder(const RunConfig& config, Text& text, Engine& engine);

  Result<Batch> training(const Micro& micro);
  // Samples of the validation part, of which an evaluation takes evaluated().
  Result<Batch> validation(const Micro& micro);
  // One sequence of which no token counts.
  Result<Batch> blank();

  // The places in the text of the samples of the last batch.
  std::span<const uint64_t> samples() const { return samples_; }
  // Spread evenly over the validation part of the text.
  uint64_t evaluated() const { return evaluated_; }

 private:
  Status begin(int64_t sequences);
  Result<Batch> load(const Micro& micro, bool training);
  Batch upload(int64_t sequences);

  const RunConfig& config_;
  Text& text_;
  Engine& engine_;
  const uint64_t evaluated_;
  std::vector<uint64_t> samples_;
  std::vector<int32_t> tokens_, targets_;
  Event uploaded_;
};

}  // namespace trainlaunch
