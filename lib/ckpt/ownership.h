// Whose a run directory is; ckpt.h says how that is known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/directory.h"

namespace trainlaunch {

class Ownership {
 public:
  // Takes the directory for `owner` ("job 12, process 345 on n1"), or refuses (usage) and names who
  // has it. Temporary directories and trash of earlier attempts are removed: names are never used
  // again, so one that stays is in nobody's way and a warning.
  static Result<Ownership> take(const Directory& dir, const std::string& owner,
                                std::vector<std::string>& warnings);

  // Before anything is committed or removed. An error: it may not be; `lost` says for good.
  Status confirm(const Directory& dir);
  bool lost() const { return lost_; }

 private:
  Status succeed(const Directory& dir, const std::string& owner);
  std::string token(uint64_t turn) const;

  Fd lock_;
  uint64_t attempt_ = 0, turn_ = 0;
  bool lost_ = false;
};

}  // namespace trainlaunch
