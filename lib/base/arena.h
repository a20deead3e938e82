// One block of memory for a whole run. What will be needed is asked for twice by the same code:
// from a measuring arena, which only counts, and then from the real one, which is exactly that
// large.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/device.h"
#include "base/view.h"

namespace trainlaunch {

class Arena {
 public:
  static Arena measuring() { return Arena(); }
  static Result<Arena> make(Device& device, size_t bytes);
  // As large as what `take`, a function of an Arena&, asks for: called first to count, then to
  // take.
  template <class Take>
  static Result<Arena> fitting(Device& device, const Take& take) {
    Arena measured = measuring();
    take(measured);
    auto arena = make(device, measured.used());
    if (arena) take(*arena);
    return arena;
  }

  // The next piece, 64-byte aligned. A measuring arena returns views with a null pointer and a
  // right shape. Taking more than was measured is an error in the caller and yields a null view.
  View take(std::string_view what, DType t, std::initializer_list<int64_t> shape);

  size_t used() const { return used_; }
  size_t capacity() const { return block_ ? block_->size() : 0; }
  bool is_measuring() const { return !block_; }

  // What was taken, by name, for the table that is printed at start; equal names are added up.
  struct Item {
    std::string what;
    size_t bytes;
  };
  const std::vector<Item>& items() const { return items_; }
  std::string describe() const { return block_ ? block_->describe() : "not allocated"; }

 private:
  std::unique_ptr<Block> block_;
  size_t used_ = 0;
  std::vector<Item> items_;
};

}  // namespace trainlaunch
