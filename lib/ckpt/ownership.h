// Whose a run directory is; ckpt.h says how that is known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/directory.h"

namespace trainlaunch {

// The lock alone, held while it is open, by who removes what no job needs.
struct Hold {
  Fd lock;
  bool sure = false;       // no job has the directory, wherever it runs
  std::string last_owner;  // the last job that had it; empty: there has been none
};
// Refuses while a job has the directory, and (usage) one that is no run directory. A job that
// starts meanwhile is refused and told `owner`.
Result<Hold> hold(const Directory& dir, const std::string& owner);

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
