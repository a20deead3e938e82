// Removes what jobs have left behind in a run directory, and nothing that anyone needs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/base.h"

namespace trainlaunch {

struct CleanOptions {
  bool dry_run = false;       // say what would go
  bool set_aside = false;     // also what runs have set aside as bad or abandoned
  std::optional<int> keep{};  // also committed checkpoints, by retention.h's rule; 0: none
  int64_t keep_every = 0;     // steps whose multiples stay all the same
  bool force = false;         // also what another host may be writing
};

struct Cleaned {
  struct Entry {
    std::string path;
    uint64_t bytes = 0;
    std::string why;  // what it was, or why it stays
  };
  std::vector<Entry> removed, left;
};

// The lock is held meanwhile. A directory that a job has is an error and left as it is. Where locks
// may not tell of jobs on other hosts, what is unfinished and has changed within the last hour
// stays. Links are neither followed nor removed.
Result<Cleaned> clean(const std::string& run, const CleanOptions& options);

}  // namespace trainlaunch
