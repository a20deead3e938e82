#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "ckpt/ckpt.h"
#include "ckpt/directory.h"
#include "ckpt/place.h"
#include "ckpt/snapshot.h"

namespace trainlaunch {

namespace {

// At most one save is in progress, in a thread of its own; the thread that trains hands it a copy
// of the state and goes on.
class BackgroundWriter final : public Writer {
 public:
  explicit BackgroundWriter(std::unique_ptr<Place> place)
      : place_(std::move(place)), warnings_(place_->warnings()) {}
  ~BackgroundWriter() override { BackgroundWriter::wait(); }

  Result<uint64_t> reserve(std::span<const Piece> owned) override {
    return snapshot_.reserve(owned);
  }

  void save(std::span<const Piece> owned, const TensorSizes& tensors, const State& state,
            bool hurry, Device& device, Stream& stream) override {
    const auto begin = Clock::now();
    wait();
    job_ = {&snapshot_, snapshot_.take(owned, device, stream), tensors, state, hurry};
    const auto end = Clock::now();
    start([this, begin, end] { work(end - begin, end); });
  }

  std::optional<Outcome> poll() override {
    std::lock_guard lock(mutex_);
    if (outcomes_.empty()) return std::nullopt;
    Outcome next = std::move(outcomes_.front());
    outcomes_.pop_front();
    return next;
  }

  std::vector<std::string> warnings() override {
    std::lock_guard lock(mutex_);
    return std::exchange(warnings_, {});
  }

  void wait() override {
    if (thread_.joinable()) thread_.join();
  }

  Result<std::vector<std::string>> set_aside_after(uint64_t step) override {
    wait();
    return place_->set_aside_after(step);
  }

  Status mark_verified(uint64_t step, const std::string& digest) override {
    wait();
    return place_->mark_verified(step, digest);
  }

 private:
  // Signals are for the thread that trains.
  template <class Work>
  void start(const Work& work) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::thread(work);
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    } catch (const std::system_error&) {  // no more threads: then training waits
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      work();
    }
  }

  void work(Seconds stall, Clock::time_point begin) {
    auto notes = place_->save(job_, [&](Outcome outcome) {
      outcome.stall = stall;
      outcome.write = Clock::now() - begin;
      std::lock_guard lock(mutex_);
      outcomes_.push_back(std::move(outcome));
    });
    std::lock_guard lock(mutex_);
    warnings_.insert(warnings_.end(), notes.begin(), notes.end());
  }

  const std::unique_ptr<Place> place_;
  Snapshot snapshot_;
  SaveJob job_;  // these three belong to the thread while there is one
  std::mutex mutex_;
  std::deque<Outcome> outcomes_;
  std::vector<std::string> warnings_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Writer>> Writer::open(const std::string& run, const SaveOptions& options,
                                             Control& control) {
  auto place = Place::open(run, options, control);
  if (!place) return forward(place);
  return std::make_unique<BackgroundWriter>(std::move(*place));
}

Result<std::vector<uint64_t>> list_checkpoints(const std::string& run) {
  bool missing = false;
  auto dir = Directory::open(run, &missing);
  if (!dir && missing) return std::vector<uint64_t>();
  if (!dir) return forward(dir);
  auto names = dir->names();
  if (!names) return forward(names);
  std::vector<uint64_t> steps;
  for (const std::string& name : *names)
    if (auto step = step_of(name)) steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

}  // namespace trainlaunch
