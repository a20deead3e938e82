#include "optim/plan.h"

#include <algorithm>
#include <bit>
#include <map>

#include "optim/gradients.h"
#include "optim/weights.h"

namespace trainlaunch {

namespace {

std::vector<Bucket> buckets_of(const ShardSetup& s, int ranks) {
  const int64_t bytes = s.options.bucket_bytes > 0 ? s.options.bucket_bytes : usual_bucket;
  return plan_buckets(s.layout, s.specs, s.options.policy, bytes, ranks);
}

// How often the weights of each block are gathered in a step of so many passes up and down.
std::vector<uint64_t> gathers(const ShardSetup& s, int64_t passes) {
  Rotation rotation(s.specs);
  const int blocks = rotation.blocks();
  std::vector<uint64_t> times(static_cast<size_t>(blocks), 0);
  const auto count = [&](const std::vector<Rotation::Fetch>& fetches) {
    for (const Rotation::Fetch& f : fetches) ++times[f.block];
  };
  const auto visit = [&](int block) {
    count(rotation.acquire(block));
    rotation.release(block);
  };
  for (int b = 0; b < blocks; ++b) times[b] = rotation.stays(b) ? 1 : 0;
  count(rotation.restart());
  // From the second pass on each finds what the one before it found.
  constexpr int64_t different = 2;
  std::vector<uint64_t> before;
  for (int64_t i = 0; i < std::min(passes, different + 1); ++i) {
    before = times;
    for (int b = 0; b < blocks; ++b) visit(b);
    for (int b = blocks - 1; b >= 0; --b) visit(b);
  }
  for (size_t b = 0; passes > different + 1 && b < times.size(); ++b)
    times[b] += static_cast<uint64_t>(passes - different - 1) * (times[b] - before[b]);
  return times;
}

}  // namespace

MemoryPlan memory_of(const ShardSetup& s, int rank, int ranks) {
  const ShardPolicy policy = s.options.policy;
  const std::vector<Bucket> buckets = buckets_of(s, ranks);
  const int64_t kept = own_share(s.layout, buckets, policy, rank).elements;
  const auto f32 = [](int64_t n) { return static_cast<uint64_t>(n) * sizeof(float); };
  const auto weights = [&](int64_t n) { return static_cast<uint64_t>(n) * bytes_of(s.compute); };

  MemoryPlan m;
  const WeightCopies copies = weight_copies(policy, s.compute, kept);
  const uint64_t in_comm = weights(weight_elements(policy, s.layout, s.specs));
  (policy == ShardPolicy::full ? m.buffers : m.weights) += in_comm;
  m.weights += weights(copies.copies);
  m.masters = f32(copies.masters);
  if (needs_equal_passes(policy)) {
    m.gradients = f32(kept);
    m.buffers += f32(passing_elements(s.layout, s.specs, buckets));
  } else {
    m.gradients = static_cast<uint64_t>(gradient_buffers(s.options.micro_batches, ranks)) *
                  f32(s.layout.elements());
  }
  m.optimizer = 2 * f32(kept);
  m.buffers += static_cast<uint64_t>(s.layout.tiles) * sizeof(double);
  return m;
}

uint64_t memory_for_sums(const ShardSetup& s, int rank, const Places& places) {
  int64_t most = 0;
  for (const Bucket& b : buckets_of(s, places.ranks())) most = std::max(most, b.owners.count(rank));
  if (s.options.bucket_bytes == 0)
    most = std::max(
        most, std::min(largest_trial / static_cast<int64_t>(sizeof(float)), s.layout.elements()) /
                  places.ranks());
  return kept_for_sums(places, rank, most);
}

Moved traffic_of(const ShardSetup& s, int rank, const Places& places, int64_t passes) {
  const ShardPolicy policy = s.options.policy;
  const std::vector<Bucket> buckets = buckets_of(s, places.ranks());
  const auto reductions = static_cast<uint64_t>(needs_equal_passes(policy) ? passes : 1);
  std::vector<uint64_t> of_block;
  if (policy == ShardPolicy::full) of_block = gathers(s, passes);

  // Layers are alike: buckets of one size are dealt out alike, which is worked out once.
  std::map<int64_t, std::pair<Moved, Moved>> by_size;
  Moved moved;
  Owners norm{std::vector<int64_t>(static_cast<size_t>(places.ranks()) + 1, 0)};
  for (const Bucket& b : buckets) {
    const auto [one, fresh] = by_size.try_emplace(b.elements());
    auto& [reduced, gathered] = one->second;
    if (fresh && policy == ShardPolicy::none) {
      reduced = moved_by_all_reduce(places, rank, b.owners, s.options.wire);
    } else if (fresh) {
      reduced = moved_by_reduce_scatter(places, rank, b.owners, s.options.wire);
      gathered = moved_by_all_gather(places, rank, b.owners, s.compute);
    }
    const uint64_t times =
        policy == ShardPolicy::full ? of_block[s.specs[s.layout.entries[b.first].param].block] : 1;
    moved += reductions * reduced;
    moved += times * gathered;
    for (int r = 0; r < places.ranks(); ++r) norm.begin[r + 1] += b.owners.count(r) / Layout::tile;
  }
  for (int r = 0; r < places.ranks(); ++r) norm.begin[r + 1] += norm.begin[r];
  moved += moved_by_all_gather(places, rank, norm, DType::f64);
  return moved;
}

int gradient_buffers(int64_t micro_batches, int ranks) {
  return static_cast<int>(
      std::bit_width(static_cast<uint64_t>(std::max<int64_t>(micro_batches / ranks, 1))));
}

}  // namespace trainlaunch
