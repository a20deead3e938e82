// The choice of the next token.
#pragma once

#include <cstdint>
#include <span>

#include "train/train.h"

namespace trainlaunch {

// From logits [vocab], the `index`-th token of a text: the most likely one at temperature 0, else
// drawn from softmax(logits / temperature) over the top_k most likely (0: all), and of these over
// the fewest whose probabilities add up to top_p (Holtzman et al., "The Curious Case of Neural Text
// Degeneration"), with the random number that (seed, index) names.
int32_t choose(std::span<const float> logits, const GenerateOptions& options, uint64_t index);

}  // namespace trainlaunch
