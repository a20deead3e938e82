#include "base/arena.h"

#include <algorithm>

namespace trainlaunch {

namespace {
constexpr size_t alignment = 64;  // a cache line, and the widest vector

size_t round_up(size_t n) { return (n + alignment - 1) / alignment * alignment; }
}  // namespace

Result<Arena> Arena::make(Device& device, size_t bytes) {
  auto block = device.allocate(std::max(bytes, alignment));
  if (!block) return forward(block);
  Arena arena;
  arena.block_ = std::move(*block);
  return arena;
}

View Arena::take(std::string_view what, DType t, std::initializer_list<int64_t> shape) {
  View v(nullptr, t, shape);
  const size_t bytes = round_up(v.bytes());
  if (block_) {
    if (bytes > block_->size() - used_) return View();
    v.p = static_cast<std::byte*>(block_->data()) + used_;
  }
  used_ += bytes;
  auto same =
      std::find_if(items_.begin(), items_.end(), [&](const Item& i) { return i.what == what; });
  if (same != items_.end())
    same->bytes += bytes;
  else
    items_.push_back({std::string(what), bytes});
  return v;
}

}  // namespace trainlaunch
