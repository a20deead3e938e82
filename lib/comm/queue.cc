#include "comm/queue.h"

#include <algorithm>
#include <utility>

#include "base/caught.h"
#include "comm/signals.h"

namespace trainlaunch {

namespace {

// How long a call that was told to stop may take to do so.
constexpr Seconds grace{5};

}  // namespace

Queue::Queue(Runner& runner, Seconds timeout) : runner_(runner), timeout_(timeout) {
  SignalsBlocked blocked;
  thread_ = std::thread([this] { background(); });
}

Queue::~Queue() {
  bool idle;
  {
    std::lock_guard lock(mutex_);
    idle = calls_.empty();
  }
  if (!idle) poison({"the communicator ended with work outstanding"});
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    work_.notify_one();
  }
  thread_.join();
}

Ticket Queue::push(Call call) {
  call.background = true;
  const Ticket ticket = enqueue(std::move(call));
  work_.notify_one();
  return ticket;
}

Ticket Queue::enqueue(Call call) {
  std::lock_guard lock(mutex_);
  call.ticket = ++issued_;
  call.sign();
  calls_.push_back(std::move(call));
  return issued_;
}

Status Queue::run(Call call, Deadline deadline) {
  call.deadline = deadline;
  return wait(enqueue(std::move(call)), deadline);
}

Status Queue::wait(Ticket ticket, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (ticket == 0 || ticket > issued_) return fail("wait: no such ticket");
  awaited_ = ticket;
  while (!error_ && done_ < ticket) {
    if (!running_) {
      run_front(lock, deadline);
    } else if (changed_.wait_until(lock, deadline.at) == std::cv_status::timeout && !error_ &&
               done_ < ticket) {
      // The thread at work knows for whom it waits: it makes the error.
      const std::string late = describe(calls_.front()) + ": timed out";
      lock.unlock();
      runner_.stop(Stop::expired);
      lock.lock();
      changed_.wait_for(lock, grace, [this] { return error_.has_value() || !running_; });
      if (error_) break;
      lock.unlock();
      poison({late});
      lock.lock();
    }
  }
  if (error_) return tl::unexpected<Error>(*error_);
  return {};
}

// What the call throws, for lack of memory or for other reasons, fails it as its own errors do.
bool Queue::run_call(const Call& call) {
  Status done = caught([&]() -> Status {
    if (!call.refused.empty()) return fail(describe(call) + ": " + call.refused);
    return runner_.run(call);
  });
  if (!done) poison(std::move(done.error()));
  return done.has_value();
}

void Queue::run_front(std::unique_lock<std::mutex>& lock, Deadline limit) {
  running_ = true;
  Call& call = calls_.front();
  if (call.background) call.deadline = Deadline::in(timeout_);
  call.deadline.at = std::min(call.deadline.at, limit.at);
  lock.unlock();
  const bool done = run_call(call);
  lock.lock();
  running_ = false;
  if (done) {
    done_ = call.ticket;
    calls_.pop_front();
  }
  if (error_ || done_ >= awaited_) changed_.notify_all();
  // Up to the call that is awaited the waiting thread goes on itself, and need not be disturbed.
  if (error_ || (!calls_.empty() && done_ >= awaited_)) work_.notify_one();
}

void Queue::poison(Error error) {
  {
    std::lock_guard lock(mutex_);
    if (error_) return;
    error_ = std::move(error);
    changed_.notify_all();
    work_.notify_one();
  }
  runner_.failed(*error_);
}

bool Queue::healthy() const {
  std::lock_guard lock(mutex_);
  return !error_ && calls_.empty();
}

void Queue::background() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (error_ && !running_ && !shut_) {
      shut_ = true;
      lock.unlock();
      runner_.shut();
      lock.lock();
    }
    if (ending_ && !running_) return;
    if (!error_ && !running_ && !calls_.empty()) {
      run_front(lock, Deadline::never());
    } else {
      work_.wait(lock);
    }
  }
}

}  // namespace trainlaunch
