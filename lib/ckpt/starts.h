// RUN/run.starts: how often a run has begun at one step, so that one that never comes any further
// is not started for ever.
#pragma once

#include <cstdint>
#include <string>

#include "ckpt/directory.h"

namespace trainlaunch {

// Counts a start from `step` with this configuration; how many there have been in a row. A file
// that cannot be read counts from 1.
Result<int> count_start(const Directory& run, uint64_t step, const std::string& config_digest);

}  // namespace trainlaunch
