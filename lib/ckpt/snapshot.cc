#include "ckpt/snapshot.h"

#include <algorithm>
#include <cstring>

namespace trainlaunch {

bool Snapshot::fits(std::span<const Piece> owned) const {
  return buffer_ && std::equal(owned.begin(), owned.end(), pieces_.begin(), pieces_.end(),
                               [](const Piece& a, const Piece& b) {
                                 return a.offset == b.offset && a.length == b.length &&
                                        a.tensor == b.tensor && a.slot == b.slot;
                               });
}

Result<uint64_t> Snapshot::reserve(std::span<const Piece> owned) {
  if (fits(owned)) return layout_.bytes;
  pieces_.assign(owned.begin(), owned.end());
  layout_ = lay_out(owned);
  if (!buffer_ || buffer_->size() < layout_.bytes) {
    buffer_.reset();
    auto block = make_host_device()->allocate(layout_.bytes);
    if (!block) return fail("the copy of a checkpoint: " + block.error().what);
    buffer_ = std::move(*block);
  } else {
    std::memset(buffer_->data(), 0, layout_.bytes);  // what lies between pieces stays zero
  }
  std::memcpy(buffer_->data(), layout_.header.data(), layout_.header.size());
  return layout_.bytes;
}

Status Snapshot::take(std::span<const Piece> owned, Device& device, Stream& stream) {
  if (auto s = reserve(owned); !s) return forward(s);
  auto* image = static_cast<std::byte*>(buffer_->data());
  for (size_t i = 0; i < layout_.pieces.size(); ++i) {
    const View from = owned[layout_.pieces[i]].mem;
    device.download(stream, View(image + layout_.positions[i], DType::f32, {from.size()}), from);
  }
  copied_ = stream.record();
  return {};
}

std::vector<Run> Snapshot::runs() const {
  std::vector<Run> runs;
  for (size_t i = 0; i < layout_.pieces.size(); ++i) {
    const Piece& p = pieces_[layout_.pieces[i]];
    runs.push_back({p.tensor, p.slot, p.offset, p.length, 0, layout_.positions[i]});
  }
  return runs;
}

}  // namespace trainlaunch
