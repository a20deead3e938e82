// When a stop is wanted and the end of the work at hand is not near, all ranks leave it unfinished.
//
// That is sound while a rank that leaves has not said its last in the work: until then no rank can
// have come to its end, and what they had before it is whole on all of them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "base/base.h"
#include "boot/boot.h"

namespace trainlaunch {

class Abandonment {
 public:
  // `release` makes calls return in which this rank waits for others; any thread may call it.
  Abandonment(Control& control, std::function<void()> release);
  ~Abandonment();
  Abandonment(const Abandonment&) = delete;
  Abandonment& operator=(const Abandonment&) = delete;

  // While one lives, this rank may be called away from what it does.
  class Work {
   public:
    explicit Work(Abandonment& a) : a_(a) { a_.set_working(true); }
    ~Work() { a_.set_working(false); }
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

   private:
    Abandonment& a_;
  };

  // This rank leaves the work, and calls the others away from it.
  void leave();
  // Whether a rank has left, as far as this one has been told. Never blocks.
  bool left() const { return left_; }
  // The same, asking: for who has met an error that may come of it.
  bool ask();

 private:
  void set_working(bool working);
  void watch();

  Control& control_;
  const std::function<void()> release_;
  std::atomic<bool> left_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Clock::time_point> since_;  // when the work at hand began
  bool ending_ = false;
  std::thread watcher_;  // of a rank that is not alone
};

}  // namespace trainlaunch
