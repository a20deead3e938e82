// Points in time. Every call that can block takes a Deadline.
#pragma once

#include <chrono>

namespace trainlaunch {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

struct Deadline {
  Clock::time_point at = Clock::time_point::max();

  static Deadline in(Seconds s) {
    return {Clock::now() + std::chrono::duration_cast<Clock::duration>(s)};
  }
  static Deadline never() { return {}; }

  bool over() const { return Clock::now() >= at; }
  // For poll(2): -1 waits for ever, otherwise whole milliseconds, rounded up, never negative.
  int poll_ms() const {
    if (at == Clock::time_point::max()) return -1;
    auto left = std::chrono::ceil<std::chrono::milliseconds>(at - Clock::now()).count();
    return left < 0 ? 0 : left > 1'000'000'000 ? 1'000'000'000 : static_cast<int>(left);
  }
};

}  // namespace trainlaunch
