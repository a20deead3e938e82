// Calls in the order of their issue, run one at a time in the background. Whoever waits for a call
// that nobody runs yet runs it himself, which saves waking a thread and being woken by it. One
// thread pushes and waits; poison() may be called by any.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "comm/call.h"

namespace trainlaunch {

class Queue {
 public:
  // What runs the calls.
  class Runner {
   public:
    virtual ~Runner() = default;
    virtual Status run(const Call& call) = 0;
    // Any thread: makes run() return soon.
    virtual void stop(Stop why) noexcept = 0;
    // Once, at the first failure, from any thread, run() may still be at work.
    virtual void failed(const Error& error) noexcept = 0;
    // Once after that, with no run() at work any more or to come.
    virtual void shut() noexcept = 0;
  };

  Queue(Runner& runner, Seconds timeout);
  ~Queue();

  // A call whose deadline starts when it is run.
  Ticket push(Call call);
  Status wait(Ticket ticket, Deadline deadline);
  // Both at once, for the calls that block.
  Status run(Call call, Deadline deadline);
  // The first error makes all that is blocked return, and all later calls fail.
  void poison(Error error);
  bool healthy() const;

 private:
  Ticket enqueue(Call call);
  void background();
  bool run_call(const Call& call);
  void run_front(std::unique_lock<std::mutex>& lock, Deadline limit);

  Runner& runner_;
  const Seconds timeout_;
  mutable std::mutex mutex_;
  std::condition_variable work_;     // for the background thread
  std::condition_variable changed_;  // for the thread that waits
  std::deque<Call> calls_;           // not yet done; the front may be at work
  Ticket issued_ = 0, done_ = 0;
  Ticket awaited_ = 0;  // by the one who waits, so that he is not woken for others
  bool running_ = false, ending_ = false, shut_ = false;
  std::optional<Error> error_;
  std::thread thread_;
};

}  // namespace trainlaunch
