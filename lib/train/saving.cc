#include "train/saving.h"

#include <algorithm>
#include <cstdio>

#include "base/printable.h"
#include "train/collective.h"
#include "train/settings.h"
#include "train/words.h"

namespace trainlaunch {

namespace {

SaveOptions save_options(const CheckpointConfig& c) {
  return {c.keep, c.keep_every, c.writers, c.verify, c.local_every > 0 ? c.local_dir : ""};
}

// "2.1 GB/s": powers of ten, as disks and networks are sold.
std::string speed(uint64_t bytes, Seconds time) {
  if (time.count() <= 0) return "-";
  return fixed(static_cast<double>(bytes) / time.count() / 1e9, 2) + " GB/s";
}

}  // namespace

Status Saving::open() {
  const CheckpointConfig& c = config_.checkpoint;
  if ((c.local_every > 0) != !c.local_dir.empty())
    return fail("checkpoint.local-dir and checkpoint.local-every say nothing without each other",
                exit_code::usage);
  auto writer = Writer::open(config_.run_dir, save_options(config_.checkpoint), control_);
  if (!writer) return forward(writer);
  writer_ = std::move(*writer);
  Status opened;
  if (control_.world().rank == 0) {
    auto log = RunLog::open(config_.run_dir);
    if (log) log_ = std::move(*log);
    if (!log) opened = forward(log);
  }
  if (auto s = all_well(control_, "run.log", opened); !s) return s;
  (void)must_end();  // says the warnings
  return {};
}

void Saving::record(const std::string& line) const {
  say_(line);
  log_.add(line);
}

Result<uint64_t> Saving::reserve(const Engine& engine) {
  auto bytes = writer_->reserve(engine.shard->owned());
  if (auto s = all_well(control_, "checkpoint: memory", bytes); !s) return forward(s);
  return bytes;
}

Result<std::unique_ptr<Reader>> Saving::find(std::optional<uint64_t> step, const Accept& accept) {
  return find_in(writer_->sources(), step, accept);
}

Result<std::unique_ptr<Reader>> Saving::find_in(const std::vector<Source>& sources,
                                                std::optional<uint64_t> step,
                                                const Accept& accept) {
  auto agreed = Reader::agree(sources, step, control_);
  if (!agreed) return forward(agreed);
  for (PassedOver& p : agreed->passed_over) {
    record(p.why);
    passed_over_.push_back(std::move(p));
  }
  if (agreed->reader)
    if (auto s = accept(*agreed->reader); !s) return forward(s);
  return std::move(agreed->reader);
}

Status Saving::load(std::unique_ptr<Reader>& found, std::optional<uint64_t> step,
                    const Accept& accept, Engine& engine) {
  const std::vector<Piece> pieces = engine.shard->wanted();
  if (found && found->level() == Level::local) {
    const auto fits = found->covers(pieces);
    if (auto s = all_well(control_, "resume: fits", fits); !s) {
      passed_over_.push_back({Level::local, found->state().step, s.error().what});
      record("local checkpoint of step " + std::to_string(found->state().step) +
             " cannot be used: " + s.error().what);
      auto shared = find_in({writer_->sources().front()}, step, accept);
      if (!shared) return forward(shared);
      found = std::move(*shared);
    }
  }
  if (!found) return {};
  auto read = found->read(pieces, *engine.device, *engine.stream);
  if (auto s = all_well(control_, "resume: read", read); !s) return s;
  engine.shard->set_updates(found->state().updates);
  return all_well(control_, "resume: spread", engine.shard->spread(*engine.stream));
}

// Training goes on from there: what is newer, and what could not be used, is set aside.
Status Saving::settle(const Reader* from) {
  const uint64_t step = from ? from->state().step : 0;
  auto moved = writer_->go_on_from(step, passed_over_);
  if (auto s = all_well(control_, "resume: set aside", moved); !s) return s;
  for (const std::string& line : *moved) record(line);
  passed_over_.clear();
  loaded_ = from != nullptr;
  if (from && from->level() == Level::shared) {
    durable_ = step;
    // A mark missed costs a checkpoint that stays longer than it need.
    if (auto s = writer_->mark_verified(step, from->digest()); !s) warn(s.error().what);
  }
  return {};
}

Status Saving::start(const Reader* from) {
  if (auto s = settle(from); !s) return s;
  const uint64_t step = from ? from->state().step : 0;
  Status again;
  if (control_.world().rank == 0 && config_.resume == "auto") {
    auto starts = writer_->count_start(step, config_digest(settings_of(config_)));
    const int most = config_.checkpoint.attempts;
    if (!starts) warn(starts.error().what);
    if (starts && most > 0 && *starts > most)
      again = fail(
          config_.run_dir + " has been started " + plural(static_cast<uint64_t>(most), "time") +
              " from step " + std::to_string(step) +
              " without coming to the next checkpoint; run.log and the output of those jobs "
              "say why, checkpoint.attempts=0 starts it all the same",
          exit_code::hopeless);
  }
  if (auto s = all_well(control_, "resume: attempts", again); !s) return s;
  log_.add("start: from step " + std::to_string(step) + ", " +
           plural(static_cast<uint64_t>(control_.world().size), "rank"));
  return {};
}

// Rank 0 looks, for all.
Result<std::optional<uint64_t>> Saving::newest_before(uint64_t step) {
  std::string mine;
  if (control_.world().rank == 0) {
    auto steps = list_checkpoints(config_.run_dir);
    if (!steps) return forward(steps);
    const auto end = std::lower_bound(steps->begin(), steps->end(), step);
    if (end != steps->begin()) mine = std::to_string(*std::prev(end));
  }
  auto all = control_.gather("roll back: step", mine, Deadline::in(storage_timeout));
  if (!all) return forward(all);
  if (all->front().empty()) return std::optional<uint64_t>();
  return std::optional<uint64_t>(std::stoull(all->front()));
}

Status Saving::go_back(uint64_t older_than, std::unique_ptr<Reader>& found, const Accept& accept,
                       Engine& engine) {
  writer_->wait();
  if (auto s = all_well(control_, "roll back: saves", must_end() ? end_ : Status()); !s) return s;
  std::optional<uint64_t> step;
  if (older_than > 0) {
    auto older = newest_before(older_than);
    if (!older) return forward(older);
    step = *older;
  }
  auto agreed = find(step, accept);
  if (!agreed) return forward(agreed);
  found = std::move(*agreed);
  if (auto s = load(found, step, accept, engine); !s) return s;
  if (!found)
    return fail("there is no checkpoint to go back to in " + config_.run_dir, exit_code::hopeless);
  return settle(found.get());
}

void Saving::begin(Engine& engine, const State& state, const Writer::How& how) {
  TensorSizes tensors;
  for (const ParamSpec& p : engine.model->params()) tensors[p.name] = p.size();
  begun_ += how.levels.shared + how.levels.local;
  writer_->save(engine.shard->owned(), tensors, state, how, *engine.device, *engine.stream);
}

void Saving::take(const Outcome& o) {
  ++ended_;
  const bool shared = o.level == Level::shared;
  if (shared) last_ = o.status;
  if (o.status) {
    if (shared) durable_ = o.step;
    record("checkpoint: step " + std::to_string(o.step) +
           (shared ? std::string(" durable") : " in " + config_.checkpoint.local_dir) + ", " +
           mebibytes(o.bytes) + " in " + fixed(o.write.count(), 3) + " s (" +
           speed(o.bytes, o.write) + "), stall " + fixed(o.stall.count() * 1000, 1) + " ms");
    return;
  }
  record(o.status.error().what +
         (durable_ ? "; the checkpoint of step " + std::to_string(*durable_) + " is intact"
                   : std::string("; there is none yet")));
  const bool asked = shared && config_.checkpoint.on_error == OnSaveError::abort;
  if (end_ && (o.succeeded_by_another || o.out_of_step || asked)) end_ = o.status;
}

// Each node has a rank that looks after its local directory, and may have something to say of it.
void Saving::warn(const std::string& line) const {
  const World& w = control_.world();
  if (w.rank == 0) return record("warning: " + line);
  std::fprintf(stderr, "rank %d (%s): warning: %s\n", w.rank, w.node_name(w.rank).c_str(),
               one_line(line).c_str());
}

bool Saving::must_end() {
  while (auto outcome = writer_->poll()) take(*outcome);
  for (const std::string& line : writer_->warnings()) warn(line);
  return !end_;
}

Status Saving::finish() {
  writer_->wait();
  return must_end() ? end_ : last_;
}

}  // namespace trainlaunch
