// lib/ckpt: checkpoints. This header is the folder's front door, and describes the format.
//
// A checkpoint of step S is the directory RUN/step-<S, 9 digits>. It exists when, and only when,
// the directory has this name and holds a MANIFEST.json whose digest is right. In it:
//
//   shard-<rank, 5 digits>.safetensors   what one rank owned: a valid safetensors file whose
//   tensors
//                                        are runs, named "<tensor>/<slot>@<offset>", f32, each
//                                        beginning at a multiple of 64 bytes in the file
//   MANIFEST.json                        format version, state, the files (name, bytes, XXH3-128),
//   the
//                                        runs (tensor, slot, offset, length, file, position), and
//                                        "digest": XXH3-128 of the manifest without that field
//
// It is written as RUN/.step-<S>.<random>.tmp and renamed after everything in it is on disk,
// without replacing; then RUN is synced. Ranges cover each tensor and slot exactly once, so any
// number of ranks can read what any other number wrote. Loading runs no code and trusts no size.
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

class Writer {
 public:
  // Every rank makes one. `run` is created (0700) if it is not there; links are not followed.
  static Result<std::unique_ptr<Writer>> open(const std::string& run, Control& control);
  virtual ~Writer() = default;

  // Collective. Returns when the pieces may change again. An error means that this save did not
  // happen, on no rank; what was committed before is intact.
  virtual Status save(std::span<const Piece> owned, const TensorSizes& tensors, const State& state,
                      Device& device, Stream& stream) = 0;
  // The result of the last save, once, when it is known.
  virtual std::optional<Result<Committed>> poll() = 0;
  // Waits for a save in progress, then keeps the newest `keep` checkpoints (0: all).
  virtual Status retain(int keep) = 0;
};

// Committed steps in a run directory, oldest first, by name only. No directory: none.
Result<std::vector<uint64_t>> list_checkpoints(const std::string& run);

class Reader {
 public:
  // One rank: opens and checks a checkpoint's manifest. `step` empty: the newest.
  static Result<std::unique_ptr<Reader>> open(const std::string& run, std::optional<uint64_t> step);
  // All ranks: rank 0 proposes, all vote that they see the same manifest and that what they would
  // read verifies. Empty result: there is no checkpoint. With `step` only that one will do.
  static Result<std::unique_ptr<Reader>> agree(const std::string& run, std::optional<uint64_t> step,
                                               Control& control);
  virtual ~Reader() = default;

  virtual const State& state() const = 0;
  virtual const std::string& path() const = 0;
  // Fills every piece completely, or is an error; digests of the files read are verified first.
  virtual Status read(std::span<const Piece> wanted, Device& device, Stream& stream) = 0;
};

}  // namespace trainlaunch
