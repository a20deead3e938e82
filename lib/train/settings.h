// The options of a run as a checkpoint keeps them, and which of them may not change.
#pragma once

#include <map>
#include <string>

#include "ckpt/ckpt.h"
#include "train/config.h"

namespace trainlaunch {

// Every option that shaped the weights: "section.key" -> value, as in the configuration file.
std::map<std::string, std::string> settings_of(const RunConfig& config);

// Refuses (usage) to go on from a checkpoint that was made with another seed, text, model or global
// batch: what would follow is no continuation. The error names the option and both values. Imported
// weights only have a model.
Status check_unchanged(const State& saved, const RunConfig& config, const std::string& data_digest,
                       const std::string& checkpoint);

// The model of a checkpoint, everything else as by default: enough to generate.
Result<RunConfig> config_of(const State& saved, const std::string& checkpoint);

}  // namespace trainlaunch
