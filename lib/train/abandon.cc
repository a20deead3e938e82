#include "train/abandon.h"

namespace trainlaunch {

namespace {

constexpr const char* key = "stop: left unfinished";
// Work that ends sooner is not asked about, and how often longer work is.
constexpr std::chrono::seconds short_work{2}, pause{1};

}  // namespace

Abandonment::Abandonment(Control& control, std::function<void()> release)
    : control_(control), release_(std::move(release)) {
  if (control.world().size == 1) return;
  watcher_ = std::thread([this] {
    (void)caught([this]() -> Status {  // without it a stop waits longer, and no more
      watch();
      return {};
    });
  });
}

Abandonment::~Abandonment() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_one();
  }
  if (watcher_.joinable()) watcher_.join();
}

void Abandonment::set_working(bool working) {
  std::lock_guard lock(mutex_);
  since_.reset();
  if (working) since_ = Clock::now();
}

void Abandonment::leave() {
  left_ = true;
  if (control_.world().size == 1) return;
  (void)control_.put(key, "");  // another rank may have said it first
  release_();
}

bool Abandonment::ask() {
  if (!left_ && control_.world().size > 1 && control_.get(key, Deadline::in(Seconds(0)))) {
    left_ = true;
    release_();
  }
  return left_;
}

void Abandonment::watch() {
  std::unique_lock lock(mutex_);
  while (!ending_ && !left_) {
    changed_.wait_for(lock, pause);
    if (ending_ || !since_ || Clock::now() - *since_ < short_work) continue;
    lock.unlock();
    (void)ask();
    lock.lock();
  }
}

}  // namespace trainlaunch
