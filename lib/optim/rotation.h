// Which blocks of weights are in memory when each is gathered for its turn: two buffers that blocks
// take in turn, the next one's gather under way while one computes.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "model/model.h"

namespace trainlaunch {

// Passes go through the blocks upwards or downwards. What comes next is told from the direction,
// which turns at both ends; a block that a pass ends with is still there when the next begins with
// it. Knows nothing but the sequence of calls, so that all ranks do the same.
class Rotation {
 public:
  static constexpr int buffers = 2;
  // A gather that is to be issued, in this order.
  struct Fetch {
    int block, buffer;
  };

  // Blocks that hold what is used at both ends of the model (a tied embedding) stay in memory and
  // take no turn.
  explicit Rotation(std::span<const ParamSpec> specs);
  int blocks() const { return static_cast<int>(turn_.size()); }
  bool stays(int block) const { return turn_[block] < 0; }

  // The weights have changed; the next pass begins at the bottom.
  std::vector<Fetch> restart();
  // `block` is needed until release(): what must be gathered now, and what should be next.
  std::vector<Fetch> acquire(int block);
  void release(int block);
  // Where the block is or will be; none: nowhere.
  std::optional<int> buffer_of(int block) const;

 private:
  bool held(int buffer) const { return holds_[buffer] >= 0 && in_use_[buffer]; }
  std::optional<int> free_buffer() const;

  std::vector<int> turn_;   // by block: its place among those that take turns; -1: stays
  std::vector<int> block_;  // the reverse
  std::array<int, buffers> holds_{-1, -1};
  std::array<bool, buffers> in_use_{};
  int last_ = 0;         // the place of the last one acquired
  int direction_ = 1;    // of the pass
  int last_buffer_ = 0;  // of the last one acquired
};

}  // namespace trainlaunch
