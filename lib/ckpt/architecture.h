// The model that a checkpoint's configuration describes.
#pragma once

#include "ckpt/ckpt.h"
#include "model/model.h"

namespace trainlaunch {

// "model.layers" and so on of a state; an error names the key that is missing or out of bounds.
Result<GptConfig> architecture_of(const State& state);
// The other way: what a state has to say for it.
std::map<std::string, std::string> settings_of(const GptConfig& model);

}  // namespace trainlaunch
