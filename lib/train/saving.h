// A run's checkpoints as the training loop sees them: begun and forgotten, said when they are
// durable, and counted when they are not.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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
  // Collective. What there is to go on from; null: nothing yet. `accept` may refuse what was found.
  using Accept = std::function<Status(const Reader&)>;
  Result<std::unique_ptr<Reader>> find(std::optional<uint64_t> step, const Accept& accept);
  // Collective. Loads what was found. A local checkpoint that does not fit the ranks of this job is
  // changed for a shared one, or for none.
  Status load(std::unique_ptr<Reader>& found, std::optional<uint64_t> step, const Accept& accept,
              Engine& engine);
  // Collective. Training begins: from what was loaded, or anew. What is newer, and what could not
  // be used, is set aside; a run that began here too often does not begin again.
  Status start(const Reader* from);

  // Every rank, at the same step. Returns when the weights may change.
  void begin(Engine& engine, const State& state, const Writer::How& how);
  // Whether a save is on its way, as far as must_end() has been told.
  bool saving() const { return begun_ > ended_; }
  // Says what has ended; never blocks. True: training must end (a failed save ends it, or another
  // job has the run directory), and finish() says why. Ranks may come to know at different steps.
  bool must_end();
  // Waits for a save in progress. An error: the last save has failed, or must_end().
  Status finish();

  // Collective. Back to the newest checkpoint, or the newest one in the run directory of a step
  // before `older_than` if there is one, when the saves in progress have ended.
  Status go_back(uint64_t older_than, std::unique_ptr<Reader>& found, const Accept& accept,
                 Engine& engine);
  // Whether a save has been begun or loaded: the same on every rank.
  bool has_saved() const { return begun_ > 0 || loaded_; }

  // The step of the last shared one.
  std::optional<uint64_t> durable() const { return durable_; }
  // Said, and kept in run.log.
  void record(const std::string& line) const;

 private:
  Result<std::unique_ptr<Reader>> find_in(const std::vector<Source>& sources,
                                          std::optional<uint64_t> step, const Accept& accept);
  Status settle(const Reader* from);
  Result<std::optional<uint64_t>> newest_before(uint64_t step);
  void take(const Outcome& outcome);
  void warn(const std::string& line) const;

  const RunConfig& config_;
  WorkerControl& control_;
  const Say say_;
  std::unique_ptr<Writer> writer_;
  RunLog log_;  // rank 0
  std::optional<uint64_t> durable_;
  bool loaded_ = false;
  uint64_t begun_ = 0, ended_ = 0;  // saves, by level
  std::vector<PassedOver> passed_over_;
  Status last_;  // of the last save in the shared directory
  Status end_;   // why training must end
};

}  // namespace trainlaunch
