// A run's checkpoints as the training loop sees them: begun and forgotten, said when they are
// durable, and counted when they are not.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ckpt/ckpt.h"
#include "train/config.h"
#include "train/engine.h"
#include "train/run_log.h"

namespace trainlaunch {

class Saving {
 public:
  using Say = std::function<void(const std::string&)>;
  Saving(const RunConfig& config, WorkerControl& control, Say say)
      : config_(config), control_(control), say_(std::move(say)) {}

  // Collective. Makes the run directory this job's.
  Status open();
  // Collective. Takes the memory of the copies; its bytes on this rank.
  Result<uint64_t> reserve(const Engine& engine);
  // Collective. The run goes on from what a reader has: what is newer is set aside.
  Status continue_from(const Reader& reader);

  // Every rank, at the same step. Returns when the weights may change.
  void begin(Engine& engine, const State& state, bool hurry = false);
  // Says what has ended; never blocks. True: training must end (a failed save ends it, or another
  // job has the run directory), and finish() says why. Ranks may come to know at different steps.
  bool must_end();
  // Waits for a save in progress. An error: the last save has failed, or must_end().
  Status finish();

  uint64_t durable() const { return durable_; }  // step of the last one; 0: none
  // Said, and kept in run.log.
  void record(const std::string& line) const;

 private:
  void take(const Outcome& outcome);

  const RunConfig& config_;
  WorkerControl& control_;
  const Say say_;
  std::unique_ptr<Writer> writer_;
  RunLog log_;  // rank 0
  uint64_t durable_ = 0;
  Status last_;  // of the last save
  Status end_;   // why training must end
};

}  // namespace trainlaunch
