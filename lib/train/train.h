// lib/train: the training loop, evaluation, text generation and the record of a run. This header is
// the folder's front door.
//
// A run directory holds checkpoints (lib/ckpt), metrics.jsonl (one JSON object a line: step, loss,
// learning rate, gradient norm, tokens/s; evaluations have "validation_loss") and, from `report`,
// loss.svg.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/base.h"
#include "boot/boot.h"
#include "train/config.h"

namespace trainlaunch {

// The body of a worker: trains as the configuration says. Collective over the world of `control`.
// Rank 0 writes progress lines to standard output.
Status train(const RunConfig& config, WorkerControl& control);

struct GenerateOptions {
  std::string prompt = "\n";
  int64_t tokens = 300;
  double temperature = 0.8;  // 0: always the most likely token
  int64_t top_k = 0;         // 0: no limit
  double top_p = 1;          // the most likely tokens that together are so likely; 1: all
  uint64_t seed = 1;
};
// Text from a checkpoint (empty step: the newest), or from the weights that a configuration starts
// with. `out` is called with each piece as it is made; where it returns false, it wants no more.
using TextSink = std::function<bool(std::string_view)>;
Status generate_from_run(const std::string& run, std::optional<uint64_t> step,
                         const GenerateOptions& options, const TextSink& out);
Status generate_untrained(const RunConfig& config, const GenerateOptions& options,
                          const TextSink& out);

// The loss curve of a run directory: drawn for a terminal of the given width, and as RUN/loss.svg.
Result<std::string> report(const std::string& run, int columns);

}  // namespace trainlaunch
