// lib/ckpt: checkpoints. This header is the folder's front door, and describes the format.
//
// A checkpoint of step S is the directory RUN/step-<S, 9 digits>. It exists when, and only when,
// the directory has this name and holds a MANIFEST.json whose digest is right. In it:
//
//   shard-<rank, 5 digits>.safetensors
//       What one rank owned: a valid safetensors file. Its tensors are runs of the model's, named
//       "<tensor>/<slot>@<offset>", F32, each beginning at a multiple of 64 bytes in the file; the
//       bytes between them are tensors ".pad@<position>", U8, because the format allows no holes.
//   MANIFEST.json
//       One object. "digest", which comes first, is the XXH3-128 of all bytes after the comma that
//       follows it; "format" is 1; "state"; "files": name, bytes and XXH3-128 of each; "tensors":
//       name -> elements; "runs": [tensor, slot, offset, length, file index, position in the file].
//
// It is written as RUN/.step-<S>.<random>.tmp and renamed after everything in it is on disk,
// without replacing; then RUN is synced. Ranges cover each tensor and slot exactly once, so any
// number of ranks can read what any other number wrote. Loading runs no code and trusts no size.
//
// The order of a save, and what a crash between its parts leaves behind:
//   each rank: create, write, fsync, close its shard     a temporary directory, removed at the
//   all ranks: vote                                       next start
//   rank 0: write and fsync the manifest, fsync the temporary directory
//   rank 0: rename                                        the old or the new state of RUN
//   rank 0: fsync RUN                                     the checkpoint
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/base.h"
#include "boot/boot.h"
#include "model/model.h"

namespace trainlaunch {

// Everything that is no tensor.
struct State {
  uint64_t step = 0;     // optimizer steps done
  uint64_t samples = 0;  // the data position
  uint64_t updates = 0;  // Adam's own count
  std::string data_digest;
  std::map<std::string, std::string> config;  // the options of the run, "section.key" -> value
};

// Elements of each tensor that a checkpoint must cover, for every slot.
using TensorSizes = std::map<std::string, int64_t>;

struct Committed {
  uint64_t step = 0;
  std::string path;
  uint64_t bytes = 0;          // of all ranks
  Seconds stall{0}, write{0};  // training stood still; until durable
};

// How long the ranks wait for each other's storage before a save or a load has failed.
inline constexpr Seconds storage_timeout{1800};

class Writer {
 public:
  // Collective. `run` is created (0700) if it is not there; a symbolic link is refused, and so is
  // a directory that another Writer has: rank 0 locks it for as long as this one lives. Temporary
  // directories that earlier attempts left behind are removed.
  static Result<std::unique_ptr<Writer>> open(const std::string& run, Control& control);
  virtual ~Writer() = default;

  // What opening could not do and training can do without: one line each, on rank 0.
  virtual const std::vector<std::string>& warnings() const = 0;
  // Collective. Returns when the pieces may change again. An error means that this save did not
  // happen, on no rank; what was committed before is intact, and the temporary files are gone.
  virtual Status save(std::span<const Piece> owned, const TensorSizes& tensors, const State& state,
                      Device& device, Stream& stream) = 0;
  // The result of the last save, once, when it is known.
  virtual std::optional<Result<Committed>> poll() = 0;
  // Waits for a save in progress, then keeps the newest `keep` checkpoints (0: all). Rank 0 acts.
  virtual Status retain(int keep) = 0;
  // The run goes on from `step`: later checkpoints are renamed to "<name>.aside", or
  // "<name>.aside.<n>" where that is taken, since their names will be needed again. Rank 0 acts,
  // and is told which, newest first.
  virtual Result<std::vector<std::string>> set_aside_after(uint64_t step) = 0;
};

// Committed steps in a run directory, oldest first, by name only. No directory: none.
Result<std::vector<uint64_t>> list_checkpoints(const std::string& run);

class Reader {
 public:
  struct Agreed;

  // One rank: opens and checks a checkpoint's manifest. `step` empty: the newest.
  static Result<std::unique_ptr<Reader>> open(const std::string& run, std::optional<uint64_t> step);
  // All ranks: rank 0 proposes a step; the ranks share out its files, verify them and vote. One
  // that fails is passed over for the next older. With `step` only that one will do. Checkpoints
  // of which none can be used are an error (exit hopeless): training would begin anew unasked.
  static Result<Agreed> agree(const std::string& run, std::optional<uint64_t> step,
                              Control& control);
  virtual ~Reader() = default;

  virtual const State& state() const = 0;
  virtual const TensorSizes& tensors() const = 0;
  virtual const std::string& path() const = 0;
  // The digest of the manifest: equal for equal checkpoints.
  virtual const std::string& digest() const = 0;
  // Fills every piece completely, or is an error that names the file. Digests are verified while
  // reading: after an error the pieces hold anything.
  virtual Status read(std::span<const Piece> wanted, Device& device, Stream& stream) = 0;
};

struct Reader::Agreed {
  std::unique_ptr<Reader> reader;        // null: there is no checkpoint
  std::vector<std::string> passed_over;  // newer ones that cannot be used, and why: one line each
};

}  // namespace trainlaunch
