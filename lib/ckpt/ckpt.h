// lib/ckpt: checkpoints. This header is the folder's front door; train-checkpoint(5) describes the
// format, the protocol of a save, and what a run directory holds.
//
//   Writer           saves: a copy of the pieces, and the rest in a thread of its own
//   Reader           finds, verifies and reads them, on any number of ranks
//   catalog.h        what a run directory holds       verify.h    every byte against its digest
//   compare.h        how two checkpoints differ       cleanup.h   litter goes, the rest stays
//   exchange.h       weights out and in as safetensors
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/base.h"
#include "boot/boot.h"
#include "model/model.h"

namespace trainlaunch {

// What watches over the steps.
struct Guard {
  uint64_t skipped = 0;    // steps in a row that changed no weight
  uint64_t rollbacks = 0;  // how often the run went back to a checkpoint without ending
  uint64_t rolled_from = 0, rolled_to = 0;  // steps: the furthest it went back from; last to
  std::vector<double> losses, norms;        // of the last steps, oldest first
  bool operator==(const Guard&) const = default;
};

// Everything that is no tensor.
struct State {
  uint64_t step = 0;     // optimizer steps done
  uint64_t samples = 0;  // the data position
  uint64_t updates = 0;  // Adam's own count
  Guard guard;
  std::string data_digest;
  std::map<std::string, std::string> config;  // the options of the run, "section.key" -> value
};

// XXH3-128 of the options of a run: equal for equal ones.
std::string config_digest(const std::map<std::string, std::string>& config);

// Elements of each tensor that a checkpoint must cover, for every slot.
using TensorSizes = std::map<std::string, int64_t>;

// Where a checkpoint is: in the run directory, which all nodes share, or on each node its part.
enum class Level : uint8_t { shared, local };
struct Levels {
  bool shared = true, local = false;
};

struct SaveOptions {
  int keep = 3;            // the newest verified ones; 0: all. The newest two stay whatever it says
  int64_t keep_every = 0;  // steps: multiples of it are kept for good; 0: none
  int writers = 8;         // ranks of a node that write at a time; 0: all
  bool verify = true;      // read each checkpoint back; one that was not is never removed
  std::string local_dir{};  // of each node, where the newest two are kept; empty: none
};

// How a save ended. The same on every rank, but for the times and a lost channel.
struct Outcome {
  Level level = Level::shared;
  uint64_t step = 0;
  Status status;  // durable, or why there is no such checkpoint; what was there before is intact
  bool succeeded_by_another = false;  // the run directory belongs to another job now
  bool out_of_step = false;  // other ranks may wait for this one: no later save can succeed
  std::string path;
  uint64_t bytes = 0;  // of all ranks
  Seconds stall{0};    // training stood still
  Seconds write{0};    // from the first byte's way to disk until durable
};

// A directory of checkpoints, as this rank names it.
struct Source {
  Level level = Level::shared;
  std::string path;
};

// A checkpoint that was to be gone on from and could not be used.
struct PassedOver {
  Level level = Level::shared;
  uint64_t step = 0;
  std::string why;  // a line
};

// How long the ranks wait for each other's storage before a save or a load has failed.
inline constexpr Seconds storage_timeout{1800};

class Writer {
 public:
  // Collective. `run` is created (0700) if it is not there; a symbolic link is refused, and so is
  // a directory that another job's Writer has. What earlier attempts left behind is removed.
  static Result<std::unique_ptr<Writer>> open(const std::string& run, const SaveOptions& options,
                                              Control& control);
  // Waits for a save in progress.
  virtual ~Writer() = default;

  // Where checkpoints may be found, for Reader::agree: the shared directory first.
  virtual std::vector<Source> sources() const = 0;

  // Takes the memory for copies of these pieces, once; its bytes.
  virtual Result<uint64_t> reserve(std::span<const Piece> owned) = 0;
  // Collective: every rank calls it at the same step. Waits for the save before it, copies the
  // pieces and returns; work enqueued on the stream from now on may change them. The local level is
  // written before the shared one. `hurry`: the process has little time left, so the checkpoint is
  // not read back.
  struct How {
    Levels levels;
    bool hurry = false;
  };
  virtual void save(std::span<const Piece> owned, const TensorSizes& tensors, const State& state,
                    const How& how, Device& device, Stream& stream) = 0;
  // Outcomes of saves, each once, in order. Never blocks.
  virtual std::optional<Outcome> poll() = 0;
  // What has gone wrong on this rank that training and checkpoints can do without: one line each,
  // once.
  virtual std::vector<std::string> warnings() = 0;
  // Until no save is in progress.
  virtual void wait() = 0;

  // Collective. The run goes on from `step`, or from the beginning (0). Shared checkpoints of later
  // steps are renamed to "<name>.aside", those that were passed over to "<name>.bad", with the
  // reason in WHY; or to "<name>.aside.<n>" where a name is taken. Local ones are removed. What was
  // done: a line each, on rank 0.
  virtual Result<std::vector<std::string>> go_on_from(uint64_t step,
                                                      std::span<const PassedOver> bad) = 0;
  // All ranks have verified this shared checkpoint, as Reader::agree does. Rank 0 acts.
  virtual Status mark_verified(uint64_t step, const std::string& digest) = 0;
  // Rank 0: counts this start, in RUN/run.starts. How often the run has been started from this step
  // with this configuration, one after the other; a checkpoint since, or a change, begins anew.
  virtual Result<int> count_start(uint64_t step, const std::string& config_digest) = 0;
};

// Committed steps in a run directory, oldest first, by name only. No directory: none.
Result<std::vector<uint64_t>> list_checkpoints(const std::string& run);

class Reader {
 public:
  struct Agreed;

  // One rank: opens and checks a checkpoint's manifest. `step` empty: the newest.
  static Result<std::unique_ptr<Reader>> open(const std::string& run, std::optional<uint64_t> step);
  // The same for a checkpoint's own directory, whatever its name.
  static Result<std::unique_ptr<Reader>> open_at(const std::string& checkpoint);
  // All ranks: rank 0 proposes a checkpoint and its manifest's digest, the newest first and a local
  // one before a shared one; the ranks share out its bytes, verify them and vote. One that fails is
  // passed over for the next. With `step` only that one will do. Shared checkpoints of which none
  // can be used are an error (exit hopeless): training would begin anew unasked. Local ones may go
  // at any time.
  static Result<Agreed> agree(std::span<const Source> sources, std::optional<uint64_t> step,
                              Control& control);
  virtual ~Reader() = default;

  virtual const State& state() const = 0;
  virtual const TensorSizes& tensors() const = 0;
  virtual std::set<std::string> slots() const = 0;
  virtual const std::string& path() const = 0;
  virtual Level level() const = 0;
  // Whether this rank can read everything here; else only what its node's ranks owned.
  virtual bool whole() const = 0;
  // The digest of the manifest: equal for equal checkpoints.
  virtual const std::string& digest() const = 0;
  // Whether all of the pieces are here.
  virtual Status covers(std::span<const Piece> wanted) const = 0;
  // Fills every piece completely, or is an error that names the file. Digests are verified while
  // reading: after an error the pieces hold anything.
  virtual Status read(std::span<const Piece> wanted, Device& device, Stream& stream) = 0;
};

struct Reader::Agreed {
  std::unique_ptr<Reader> reader;       // null: there is no checkpoint
  std::vector<PassedOver> passed_over;  // newer ones that cannot be used
};

}  // namespace trainlaunch
