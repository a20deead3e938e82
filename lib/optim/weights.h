// The weights of a rank: one flat piece of the communicator's memory.
#pragma once

#include <vector>

#include "optim/optim.h"

namespace trainlaunch {

// As `initialise` made them. f32 [layout.elements()].
Result<View> make_weights(const ShardParts& parts);

// A parameter within a flat space, in its shape.
View view_of(View flat, const ParamSpec& spec, const Layout::Entry& entry);

// Every tensor's weight, whole.
std::vector<Piece> weight_pieces(View flat, std::span<const ParamSpec> specs, const Layout& layout);

}  // namespace trainlaunch
