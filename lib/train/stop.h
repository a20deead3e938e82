// Requests to stop early, by SIGTERM (what Slurm sends before a time limit) or SIGUSR1.
#pragma once

#include <csignal>
#include <optional>

#include "base/base.h"

namespace trainlaunch {

// While an object lives, the signals are held back from the process and can be asked for. It must
// be made before other threads are: they inherit the mask.
class StopRequest {
 public:
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  bool asked();
  // Asked again, a second or more after the first time: schedulers send a signal twice at once.
  bool urged();

 private:
  sigset_t before_;
  Fd signals_;
  bool urged_ = false;
  std::optional<Clock::time_point> first_;
};

}  // namespace trainlaunch
