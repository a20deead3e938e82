// Requests to stop early, by SIGTERM (what Slurm sends before a time limit) or SIGUSR1.
#pragma once

#include <csignal>

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

 private:
  sigset_t before_;
  Fd signals_;
  bool asked_ = false;
};

}  // namespace trainlaunch
