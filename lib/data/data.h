// lib/data: tokens from files, and which of them come next. This header is the folder's front door.
//
// The order of samples is a function of (seed, sample number) alone. A run's position is therefore
// one integer, the number of samples used so far, and means the same at every world size.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/base.h"

namespace trainlaunch {

struct Position {
  uint64_t samples = 0;  // used so far: sample `samples` comes next
};

// Which of the n samples of an epoch is the g-th of the run: epoch g / n, and there a permutation
// of [0, n) keyed by (seed, epoch). Every sample occurs once in every epoch. n > 0.
uint64_t order(uint64_t seed, uint64_t g, uint64_t n);

// A micro-batch: samples first .. first+count-1 of the run's order.
struct Micro {
  uint64_t first = 0;
  int64_t count = 0;
};
// The micro-batches of one rank of the global batch that begins at sample `first`: the batch is cut
// into micro-batches of `micro` samples (the last may be smaller), and these are dealt out in
// contiguous runs, as evenly as whole micro-batches allow. Some ranks may have none. global >= 0,
// micro > 0.
std::vector<Micro> deal(uint64_t first, int64_t global, int64_t micro, int rank, int size);

// A text file as bytes: 256 tokens. The last 10 % of the bytes are the validation part, cut first;
// a sample is a window of context + 1 bytes that starts at a multiple of context.
//
// Samples are read with pread(2): the ranks of a node share the system's page cache, no file is too
// large, and a file that is cut short while in use is an error, where a mapping would be SIGBUS.
class Text {
 public:
  // Reads the file once for its digest. A file that is missing, no regular file, or too short for
  // one sample in each part is a usage error that names data.path.
  static Result<std::unique_ptr<Text>> open(const std::string& path, int64_t context);
  virtual ~Text() = default;

  static constexpr int64_t vocab = 256;
  virtual uint64_t bytes() const = 0;
  virtual uint64_t training_samples() const = 0;  // of one epoch
  virtual uint64_t validation_samples() const = 0;
  virtual const std::string& digest() const = 0;  // XXH3-128 of the file, in hex

  // One sample into a row of tokens and targets (host memory, i32 [context]). Not from two threads
  // at once.
  virtual Status training(uint64_t sample, int32_t* tokens, int32_t* targets) = 0;
  virtual Status validation(uint64_t sample, int32_t* tokens, int32_t* targets) = 0;
};

}  // namespace trainlaunch
