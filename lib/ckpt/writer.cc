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
#include "ckpt/starts.h"

namespace trainlaunch {

namespace {

// At most one save is in progress, in a thread of its own; the thread that trains hands it a copy
// of the state and goes on.
class BackgroundWriter final : public Writer {
 public:
  BackgroundWriter(std::unique_ptr<Place> shared, std::unique_ptr<Place> local)
      : shared_(std::move(shared)), local_(std::move(local)) {
    for (const Place* place : {shared_.get(), local_.get()})
      if (place) add_warnings(place->warnings());
  }
  ~BackgroundWriter() override { BackgroundWriter::wait(); }

  std::vector<Source> sources() const override {
    std::vector<Source> all{shared_->source()};
    if (local_) all.push_back(local_->source());
    return all;
  }

  Result<uint64_t> reserve(std::span<const Piece> owned) override {
    return snapshot_.reserve(owned);
  }

  void save(std::span<const Piece> owned, const TensorSizes& tensors, const State& state,
            const How& how, Device& device, Stream& stream) override {
    const auto begin = Clock::now();
    wait();
    const auto taken = caught([&] { return snapshot_.take(owned, device, stream); });
    job_ = {&snapshot_, taken, tensors, state, how};
    const auto end = Clock::now();
    start([this, stall = end - begin] { work(stall); });
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

  Result<std::vector<std::string>> go_on_from(uint64_t step,
                                              std::span<const PassedOver> bad) override {
    wait();
    std::vector<std::string> all;
    for (Place* place : {shared_.get(), local_.get()}) {
      if (!place) continue;
      auto done = place->go_on_from(step, bad);
      if (!done) return done;
      all.insert(all.end(), done->begin(), done->end());
    }
    return all;
  }

  Status mark_verified(uint64_t step, const std::string& digest) override {
    wait();
    return shared_->mark_verified(step, digest);
  }

  Result<int> count_start(uint64_t step, const std::string& config_digest) override {
    return trainlaunch::count_start(shared_->dir(), step, config_digest);
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

  void work(Seconds stall) {
    if (local_ && job_.how.levels.local) save_in(*local_, stall);
    if (job_.how.levels.shared) save_in(*shared_, stall);
  }

  void save_in(Place& place, Seconds stall) {
    const auto begin = Clock::now();
    bool decided = false;
    const auto decide = [&](Outcome outcome) {
      outcome.stall = stall;
      outcome.write = Clock::now() - begin;
      std::lock_guard lock(mutex_);
      outcomes_.push_back(std::move(outcome));
      decided = true;
    };
    const Status done = caught([&]() -> Status {
      add_warnings(place.save(job_, decide));
      return {};
    });
    if (done || decided) return;
    (void)caught([&]() -> Status {
      decide(place.thrown(job_, done.error().what));
      return {};
    });
  }

  void add_warnings(const std::vector<std::string>& lines) {
    std::lock_guard lock(mutex_);
    warnings_.insert(warnings_.end(), lines.begin(), lines.end());
  }

  const std::unique_ptr<Place> shared_, local_;  // local_ may be null
  Snapshot snapshot_;
  SaveJob job_;  // these three belong to the thread while there is one
  std::mutex mutex_;
  std::deque<Outcome> outcomes_;
  std::vector<std::string> warnings_;
  std::thread thread_;
};

// What tells this run from every other, made once by rank 0: a local directory may have others'.
Result<std::string> run_id(const Directory& run, Control& control) {
  std::string mine;
  if (control.world().rank == 0) {
    auto id = run.read_text(run_id_name, run_id_length);
    mine = id ? *id : "";
    if (!is_run_id(mine)) {
      mine = random_hex();
      if (auto s = run.write_over(run_id_name, mine); !s) mine = "!" + s.error().what;
    }
  }
  auto all = control.gather("checkpoint: run.id", mine, Deadline::in(storage_timeout));
  if (!all) return forward(all);
  if (all->front().starts_with("!")) return fail("run-dir: " + all->front().substr(1));
  return all->front();
}

}  // namespace

Result<std::unique_ptr<Writer>> Writer::open(const std::string& run, const SaveOptions& options,
                                             Control& control) {
  auto shared = Place::open({Level::shared, run}, options, control);
  if (!shared) return forward(shared);
  std::unique_ptr<Place> local;
  if (!options.local_dir.empty()) {
    auto id = run_id((*shared)->dir(), control);
    if (!id) return forward(id);
    const World& w = control.world();
    const std::string path = options.local_dir + "/" + local_name(*id, w.node_name(w.rank));
    SaveOptions newest_two = options;
    newest_two.keep = 2;
    newest_two.keep_every = 0;
    auto opened = Place::open({Level::local, path}, newest_two, control);
    if (!opened) return forward(opened);
    local = std::move(*opened);
  }
  return std::make_unique<BackgroundWriter>(std::move(*shared), std::move(local));
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
