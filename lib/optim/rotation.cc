#include "optim/rotation.h"

#include <algorithm>

namespace trainlaunch {

Rotation::Rotation(std::span<const ParamSpec> specs) {
  int blocks = 0;
  for (const ParamSpec& s : specs) blocks = std::max(blocks, s.block + 1);
  std::vector<bool> stays(static_cast<size_t>(blocks), false);
  for (const ParamSpec& s : specs)
    if (s.contributions > 1) stays[s.block] = true;
  for (int b = 0; b < blocks; ++b) {
    turn_.push_back(stays[b] ? -1 : static_cast<int>(block_.size()));
    if (!stays[b]) block_.push_back(b);
  }
}

std::vector<Rotation::Fetch> Rotation::restart() {
  holds_.fill(-1);
  in_use_.fill(false);
  last_ = 0;
  direction_ = 1;
  last_buffer_ = buffers - 1;
  if (block_.empty()) return {};
  holds_[0] = block_[0];
  return {{block_[0], 0}};
}

std::optional<int> Rotation::buffer_of(int block) const {
  for (int i = 0; i < buffers; ++i)
    if (holds_[i] == block) return i;
  return std::nullopt;
}

// Not the one that was used last, if there is a choice.
std::optional<int> Rotation::free_buffer() const {
  for (int k = 1; k <= buffers; ++k) {
    const int i = (last_buffer_ + k) % buffers;
    if (!held(i)) return i;
  }
  return std::nullopt;
}

std::vector<Rotation::Fetch> Rotation::acquire(int block) {
  std::vector<Fetch> fetches;
  const int place = turn_[block], top = static_cast<int>(block_.size()) - 1;
  if (place < 0) return fetches;
  if (place == 0)
    direction_ = 1;
  else if (place == top)
    direction_ = -1;
  else if (place != last_)
    direction_ = place > last_ ? 1 : -1;
  last_ = place;

  const auto fetch = [&](int b) {
    const auto buffer = buffer_of(b);
    if (buffer) return buffer;
    const auto free = free_buffer();
    if (free) {
      holds_[*free] = b;
      fetches.push_back({b, *free});
    }
    return free;
  };
  const auto buffer = fetch(block);
  if (!buffer) return fetches;
  in_use_[*buffer] = true;
  last_buffer_ = *buffer;
  const int next = place + direction_;
  if (next >= 0 && next <= top) (void)fetch(block_[next]);
  return fetches;
}

void Rotation::release(int block) {
  if (const auto buffer = buffer_of(block)) in_use_[*buffer] = false;
}

}  // namespace trainlaunch
