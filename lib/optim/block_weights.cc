// Each rank keeps its own weights only. Those of a block are put together in a buffer when a pass
// comes to it, from all ranks' parts.
#include <algorithm>

#include "optim/weights.h"

namespace trainlaunch {

namespace {

class BlockWeights final : public Weights {
 public:
  BlockWeights(const ShardParts& parts, const WeightsPlan& plan, View memory)
      : device_(parts.device),
        ops_(parts.ops),
        comm_(parts.comm),
        plan_(plan),
        rotation_(plan.specs),
        blocks_(static_cast<size_t>(rotation_.blocks())) {
    for (size_t b = 0; b < plan_.buckets.size(); ++b) {
      const Bucket& bucket = plan_.buckets[b];
      Block& block = blocks_[plan_.specs[plan_.layout.entries[bucket.first].param].block];
      block.parts.push_back({b, block.elements});
      for (int i = bucket.first; i < bucket.last; ++i) {
        const Layout::Entry& e = plan_.layout.entries[i];
        place_.resize(plan_.specs.size());
        place_[e.param] = block.elements + e.offset - bucket.offset;
      }
      block.elements += bucket.elements();
    }
    // Those that stay come first, then the buffers that the others take in turn.
    int64_t next = 0, largest = 0;
    for (int b = 0; b < rotation_.blocks(); ++b) {
      Block& block = blocks_[b];
      if (!rotation_.stays(b)) {
        largest = std::max(largest, block.elements);
        continue;
      }
      block.place = memory.slice(next, block.elements);
      next += block.elements;
    }
    for (View& buffer : buffers_) {
      if (next + largest > memory.size()) break;
      buffer = memory.slice(next, largest);
      next += largest;
    }
  }

  Status prepare() {
    const WeightCopies n = weight_copies(ShardPolicy::full, ops_.dtype(), plan_.own.elements);
    const auto take = [&](Arena& arena) {
      masters_ = arena.take("master weights", DType::f32, {n.masters});
      kept_ = n.copies > 0 ? arena.take("own weights", ops_.dtype(), {n.copies}) : masters_;
    };
    auto arena = Arena::fitting(device_, take);
    if (!arena) return forward(arena);
    arena_ = std::move(*arena);
    return {};
  }

  void acquire(Stream& stream, int block) override {
    fetch(stream, rotation_.acquire(block));
    finish_gather(blocks_[block]);
  }
  void release(int block) override { rotation_.release(block); }
  View weight(int param) const override {
    const Block& block = blocks_[plan_.specs[param].block];
    return view_of(block.place, plan_.specs[param], place_[param]);
  }
  // Every rank runs equally many passes.
  void no_pass() override {}

  View master(const Run& run) const override { return masters_.slice(run.kept, run.size()); }
  View copy(const Run& run) const override {
    return kept_.p == masters_.p ? View() : kept_.slice(run.kept, run.size());
  }
  void updated(Stream&, size_t) override {}
  void all_updated(Stream& stream) override {
    for (int b = 0; b < rotation_.blocks(); ++b)
      if (rotation_.stays(b)) gather(stream, blocks_[b]);
    fetch(stream, rotation_.restart());
  }

  Status refresh(Stream& stream, const Rule& rule, uint64_t update) override {
    for (const Run& run : plan_.own.runs) {
      if (!copy(run)) break;
      auto s = round_copy(device_, ops_, stream, rule, update, master(run), copy(run), run.begin);
      if (!s) return s;
    }
    all_updated(stream);
    return status_;
  }

 private:
  struct Part {
    size_t bucket;
    int64_t offset;  // within the block
  };
  struct Block {
    std::vector<Part> parts;
    int64_t elements = 0;
    View place;                       // where it is, or was last
    std::vector<Ticket> gathering{};  // not waited for
  };

  void fetch(Stream& stream, const std::vector<Rotation::Fetch>& fetches) {
    for (const auto& [block, buffer] : fetches) {
      // What was fetched there ahead and never used may still be on its way.
      for (Block& other : blocks_)
        if (other.place.p == buffers_[buffer].p) finish_gather(other);
      blocks_[block].place = buffers_[buffer].slice(0, blocks_[block].elements);
      gather(stream, blocks_[block]);
    }
  }

  void gather(Stream& stream, Block& block) {
    finish_gather(block);
    for (const Part& part : block.parts) {
      const Bucket& bucket = plan_.buckets[part.bucket];
      const View whole = block.place.slice(part.offset, bucket.elements());
      const int64_t n = bucket.owners.count(comm_.rank());
      if (n > 0) {
        ops_.copy(stream, kept_.slice(plan_.own.of(part.bucket).front().kept, n),
                  whole.slice(bucket.owners.offset(comm_.rank()), n));
      }
      block.gathering.push_back(comm_.all_gather(whole, bucket.owners, stream.record()));
    }
  }

  void finish_gather(Block& block) {
    for (const Ticket t : block.gathering) {
      auto ok = comm_.wait(t, Deadline::in(plan_.options.timeout));
      if (!ok && status_) status_ = ok;
    }
    block.gathering.clear();
  }

  Device& device_;
  Ops& ops_;
  Comm& comm_;
  const WeightsPlan plan_;
  Rotation rotation_;
  std::vector<Block> blocks_;
  std::vector<int64_t> place_;                   // by parameter: within its block
  std::array<View, Rotation::buffers> buffers_;  // [the largest block that takes turns]
  Arena arena_;
  View masters_;  // f32 [own.elements]
  View kept_;     // [own.elements], of the ops' type; masters_ if that is f32
};

}  // namespace

Result<std::unique_ptr<Weights>> make_block_weights(const ShardParts& parts,
                                                    const WeightsPlan& plan, View memory) {
  auto weights = std::make_unique<BlockWeights>(parts, plan, memory);
  if (auto s = weights->prepare(); !s) return forward(s);
  return weights;
}

}  // namespace trainlaunch
