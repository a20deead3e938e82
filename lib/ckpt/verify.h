// Reads a checkpoint from end to end and compares every byte with its digest.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ckpt/directory.h"

namespace trainlaunch {

// How much of long work is done, in bytes.
using Progress = std::function<void(uint64_t done, uint64_t all)>;

struct Verdict {
  uint64_t bytes = 0;               // that have been read
  size_t files = 0, expected = 0;   // shards; a local part has some of those that there are
  std::vector<std::string> damage;  // a line each: file, bytes, and which tensors lie there
  uint64_t more = 0;                // damage beyond the lines
};

// All that is wrong with it: the manifest and its digest, files that are missing, have another size
// or do not belong, every chunk of every shard, and the mark that says it has been read back. Keeps
// no more in memory than the manifest and one chunk.
Verdict verify_checkpoint(const Directory& checkpoint, const Progress& progress);

}  // namespace trainlaunch
