// A copy of a rank's pieces in the form of its shard file: one buffer, reused by every save.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ckpt/shard_file.h"

namespace trainlaunch {

class Snapshot {
 public:
  // Memory for these pieces; its bytes. Nothing is done when it is there.
  Result<uint64_t> reserve(std::span<const Piece> owned);
  // Enqueues the copies.
  Status take(std::span<const Piece> owned, Device& device, Stream& stream);
  // Waits for the copies; until then, and after an error, the image holds anything.
  Status ready(Deadline deadline) const { return copied_.wait(deadline); }

  std::span<const std::byte> image() const {
    return {static_cast<const std::byte*>(buffer_->data()), layout_.bytes};
  }
  std::vector<Run> runs() const;

 private:
  bool fits(std::span<const Piece> owned) const;

  std::unique_ptr<Block> buffer_;
  std::vector<Piece> pieces_;  // what the layout is of; where they lay means nothing now
  ShardLayout layout_;
  Event copied_;
};

}  // namespace trainlaunch
