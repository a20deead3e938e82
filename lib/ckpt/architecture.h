// The model that a checkpoint's configuration describes.
#pragma once

#include "ckpt/ckpt.h"
#include "model/model.h"

namespace trainlaunch {

// "model.layers" and so on of a state; an error names the key that is missing or out of bounds.
Result<GptConfig> architecture_of(const State& state);
// That model, for a checkpoint that has at least as many tensors as it has layers: one that lies
// about the layers makes nobody take more memory than it took itself.
Result<std::unique_ptr<Model>> model_of(const TensorSizes& tensors, const GptConfig& config);
// The other way: what a state has to say for it.
std::map<std::string, std::string> settings_of(const GptConfig& model);

}  // namespace trainlaunch
