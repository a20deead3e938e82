// Which checkpoints may go.
#pragma once

#include <cstdint>
#include <vector>

namespace trainlaunch {

struct Kept {
  uint64_t step = 0;
  bool verified = false;
};

// Of committed checkpoints, by rising step, those that may be removed, oldest first. What stays:
// the newest two, whatever they are; the newest `keep` verified ones (0: all there are); multiples
// of `keep_every` (0: none); and every one that was not verified.
std::vector<uint64_t> expendable(const std::vector<Kept>& committed, int keep, int64_t keep_every);

}  // namespace trainlaunch
