#include "train/stop.h"

#include <sys/signalfd.h>
#include <unistd.h>

namespace trainlaunch {

StopRequest::StopRequest() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  signals_.reset(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  // Without the descriptor nothing would ever take the signals: leave them as they were.
  if (!signals_) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

StopRequest::~StopRequest() {
  asked();  // one that was taken must not end the process now
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

bool StopRequest::asked() {
  signalfd_siginfo info;
  while (signals_ && read(signals_.get(), &info, sizeof info) == sizeof info) {
    const auto now = Clock::now();
    if (!first_) first_ = now;
    urged_ = urged_ || now - *first_ >= std::chrono::seconds(1);
  }
  return first_.has_value();
}

bool StopRequest::urged() { return asked() && urged_; }

}  // namespace trainlaunch
