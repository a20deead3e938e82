// The table at the start of a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/data.h"
#include "train/config.h"
#include "train/engine.h"

namespace trainlaunch {

struct Start {
  const RunConfig& config;
  const World& world;
  const Engine& engine;
  const Text& text;
  uint64_t copy = 0;  // bytes that checkpoints are written from
  std::string from;   // the checkpoint; empty: none
};
std::vector<std::string> describe(const Start& start);

// Its line about the model, which plans have too.
std::string model_line(const ModelConfig& config, const Model& model);

}  // namespace trainlaunch
