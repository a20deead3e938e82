// lib/optim: what happens to gradients: reduction in buckets while the backward pass runs,
// clipping, AdamW on the owned tiles, and the schedule. This header is the folder's front door.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/base.h"
#include "comm/comm.h"
#include "model/model.h"
#include "ops/ops.h"

namespace trainlaunch {

// Who keeps the optimizer's state. `none`: everyone keeps all and updates all, after an all-reduce.
// `optimizer`: each rank keeps and updates its own tiles; the same bytes travel.
enum class ShardPolicy : uint8_t { none, optimizer };

// Sums of gradients. Those of one rank are added up in one buffer, micro-batch by micro-batch, and
// then over the ranks as the communicator does: the bits depend on the ranks. Or, with
// `micro_batches`, each micro-batch of a global batch has a gradient of its own, and all of them
// are summed as one binary tree: neighbours first, then neighbouring pairs, and so on. A rank has a
// branch of the tree, so the bits are the same for any number of ranks that divides the number of
// micro-batches, if both are powers of two, the ranks have equally many, in their order, and the
// communicator sums as a tree too (SumOrder). The norm is summed in f64 by tile in either case.
struct ShardOptions {
  ShardPolicy policy = ShardPolicy::optimizer;
  int64_t bucket_bytes = int64_t{25} << 20;  // of one reduction; a bucket holds whole parameters
  int64_t micro_batches = 0;                 // of a global batch, to be summed as a tree; or 0
  Rule rule;                                 // weight_decay applies to Group::decay
  Seconds timeout{300};                      // of one collective
  Trace* trace = nullptr;                    // track "optimizer"
};

// Buffers as large as the model that each rank keeps for gradients: without a tree one; with one,
// log2 of the rank's micro-batches more.
int gradient_buffers(int64_t micro_batches, int ranks);

// The shard of this rank. Weights and gradients live in memory of `comm`; weights start as
// `initialise` made them.
struct ShardParts {
  Device& device;
  Ops& ops;
  Comm& comm;
  std::span<const ParamSpec> specs;
  const Layout& layout;
  uint64_t seed = 0;
};
Result<std::unique_ptr<Shard>> make_shard(const ShardParts& parts, const ShardOptions& options);

// Weights only, for evaluation and generation: no gradients, no optimizer.
Result<std::unique_ptr<Shard>> make_frozen_shard(const ShardParts& parts);

// Linear warm-up to `lr` over `warmup` steps, then a cosine to `min_lr` at `steps`
// (Loshchilov & Hutter, "SGDR"). Steps count from 0; a function of the step alone.
struct Schedule {
  double lr = 1e-3, min_lr = 1e-4;
  uint64_t warmup = 100, steps = 1000;
  double at(uint64_t step) const;
};

}  // namespace trainlaunch
