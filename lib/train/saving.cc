#include "train/saving.h"

#include "train/collective.h"
#include "train/words.h"

namespace trainlaunch {

namespace {

SaveOptions save_options(const CheckpointConfig& c) {
  return {c.keep, c.keep_every, c.writers, c.verify};
}

// "2.1 GB/s": powers of ten, as disks and networks are sold.
std::string speed(uint64_t bytes, Seconds time) {
  if (time.count() <= 0) return "-";
  return fixed(static_cast<double>(bytes) / time.count() / 1e9, 2) + " GB/s";
}

}  // namespace

Status Saving::open() {
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

Status Saving::continue_from(const Reader& reader) {
  durable_ = reader.state().step;
  auto moved = writer_->set_aside_after(durable_);
  if (auto s = all_well(control_, "resume: set aside", moved); !s) return s;
  for (const std::string& path : *moved) record("set aside: " + path);
  // It is read again when it is to be removed or gone back to: a mark missed costs nothing.
  if (auto s = writer_->mark_verified(durable_, reader.digest()); !s)
    record("warning: " + s.error().what);
  return {};
}

void Saving::begin(Engine& engine, const State& state, bool hurry) {
  TensorSizes tensors;
  for (const ParamSpec& p : engine.model->params()) tensors[p.name] = p.size();
  writer_->save(engine.shard->owned(), tensors, state, hurry, *engine.device, *engine.stream);
}

void Saving::take(const Outcome& o) {
  last_ = o.status;
  if (o.status) {
    durable_ = o.step;
    record("checkpoint: step " + std::to_string(o.step) + " durable, " + mebibytes(o.bytes) +
           " in " + fixed(o.write.count(), 3) + " s (" + speed(o.bytes, o.write) + "), stall " +
           fixed(o.stall.count() * 1000, 1) + " ms");
    return;
  }
  record(o.status.error().what +
         (durable_ > 0 ? "; the checkpoint of step " + std::to_string(durable_) + " is intact"
                       : std::string("; there is none yet")));
  if (end_ && (o.succeeded_by_another || config_.checkpoint.on_error == OnSaveError::abort))
    end_ = o.status;
}

bool Saving::must_end() {
  while (auto outcome = writer_->poll()) take(*outcome);
  for (const std::string& line : writer_->warnings()) record("warning: " + line);
  return !end_;
}

Status Saving::finish() {
  writer_->wait();
  return must_end() ? end_ : last_;
}

}  // namespace trainlaunch
