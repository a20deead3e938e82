#include "ckpt/retention.h"

#include <algorithm>

namespace trainlaunch {

std::vector<uint64_t> expendable(const std::vector<Kept>& committed, int keep, int64_t keep_every) {
  std::vector<uint64_t> steps;
  if (keep <= 0) return steps;
  int newer = 0, newer_verified = 0;
  for (auto it = committed.rbegin(); it != committed.rend(); ++it) {
    const bool milestone = keep_every > 0 && it->step % static_cast<uint64_t>(keep_every) == 0;
    if (newer >= 2 && newer_verified >= keep && it->verified && !milestone)
      steps.push_back(it->step);
    ++newer;
    newer_verified += it->verified;
  }
  std::reverse(steps.begin(), steps.end());
  return steps;
}

}  // namespace trainlaunch
