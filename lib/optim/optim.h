// lib/optim: what happens to gradients: reduction in buckets while the backward pass runs,
// clipping, AdamW on the owned tiles, and the schedule. This header is the folder's front door.
//
//   Shard (model.h)     made here for each form of data parallelism; plan.h has what a form costs
//   share.h             which part of the parameters is a rank's        buckets.h   and of a bucket
//   gradients.h         where gradients are added up: whole, or passing through a few buffers
//   weights.h           where weights are: whole, or block by block, in rotation.h's order
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/base.h"
#include "comm/comm.h"
#include "model/model.h"
#include "ops/ops.h"

namespace trainlaunch {

// Who keeps what besides its part of a checkpoint.
//
//   none        everyone keeps all and updates all, after an all-reduce
//   optimizer   each rank keeps the optimizer's state of its own tiles and updates those; the same
//               bytes travel
//   gradients   besides, each keeps the gradients of its own tiles only: those of a micro-batch
//               pass through a few buffers and are reduced at once
//   full        besides, each keeps the weights of its own tiles only; those of a block are
//               gathered when it is needed, the next block's while it computes
//
// With `gradients` and `full` every rank must run equally many passes in a step.
enum class ShardPolicy : uint8_t { none, optimizer, gradients, full };
constexpr const char* name_of(ShardPolicy p) {
  constexpr const char* names[] = {"none", "optimizer", "gradients", "full"};
  return names[static_cast<int>(p)];
}
// Whether ranks without a micro-batch must run a blank one (all targets -1), not Shard::no_micro().
constexpr bool needs_equal_passes(ShardPolicy p) { return p >= ShardPolicy::gradients; }

// Sums of gradients. Those of one rank are added up in one buffer, micro-batch by micro-batch, and
// then over the ranks as the communicator does (with `gradients` and `full` over the ranks first):
// the bits depend on the ranks. Or, with `micro_batches`, each micro-batch of a global batch has a
// gradient of its own, and all of them are summed as one binary tree: neighbours first, then
// neighbouring pairs, and so on. A rank has a branch of the tree, so the bits are the same for any
// number of ranks that divides the number of micro-batches, if both are powers of two, the ranks
// have equally many, in their order, and the communicator sums as a tree too (SumOrder); that goes
// with `none` and `optimizer` only. The norm is summed in f64 by tile in either case. No bit
// depends on the size of buckets.
struct ShardOptions {
  ShardPolicy policy = ShardPolicy::optimizer;
  int64_t bucket_bytes = int64_t{25} << 20;  // of one reduction; whole parameters. 0: measured
  int64_t micro_batches = 0;                 // of a global batch, to be summed as a tree; or 0
  DType wire = DType::f32;                   // of gradients between nodes: f32 or bf16
  Rule rule;                                 // weight_decay applies to Group::decay
  Seconds timeout{300};                      // of one collective
  Trace* trace = nullptr;                    // track "optimizer"
};

// The shard of this rank. Where the operations compute in bf16, weights are updated in f32
// ("masters") and a rounded copy of them is what travels and computes. Collective.
struct ShardParts {
  Device& device;
  Ops& ops;  // f32 or bf16
  Comm& comm;
  std::span<const ParamSpec> specs;
  const Layout& layout;
  uint64_t seed = 0;  // of the initial weights
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
