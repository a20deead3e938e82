// What a run computes with, put together from its configuration in the one order that works.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/base.h"
#include "boot/boot.h"
#include "comm/comm.h"
#include "model/model.h"
#include "ops/ops.h"
#include "optim/plan.h"
#include "train/config.h"
#include "train/peak.h"
#include "train/profile.h"

namespace trainlaunch {

// Members are in the order of their making: each may use those above it.
struct Engine {
  std::unique_ptr<Trace> trace;      // null unless the configuration asks for one
  std::unique_ptr<Profile> profile;  // the same
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  int threads = 1;
  std::unique_ptr<Ops> ops;
  // Of one rank, only for training: what its speed is a share of, and the ceiling of its profile.
  Peak peak, ceiling;
  std::unique_ptr<Comm> comm;
  std::unique_ptr<Model> model;
  Layout layout;
  Arena arena = Arena::measuring();
  std::unique_ptr<Shard> shard;
  MemoryPlan shard_memory;  // what it takes, when it trains

  View tokens, targets;  // i32 [micro, context]: room for the largest micro-batch
  View totals;           // f64 [2]: sum of losses, number of unmasked targets
  // [vocab], only for generation: of the ops' type, and as the host reads them, f32.
  View computed_logits, logits;

  Ctx context() { return {*ops, *stream, totals.slice(0, 1), totals.slice(1, 1), trace.get()}; }
  // The first `sequences` rows of the memory for batches.
  Batch batch(int64_t sequences) const;
};

// Whether the options go together and with this number of ranks; an error is one of usage.
Status check_batches(const RunConfig& config, int ranks);

// Sequences per forward pass: what was asked for, or else a rank's even share of the global batch,
// but no more than keeps the activations of a pass within a few thousand rows. Canonical: the same
// for any number of ranks.
int64_t micro_batch(const RunConfig& config, int ranks);

// Threads of a rank, where its node's ranks share what this process may use.
int planned_threads(const RunConfig& config, int ranks_of_node);
ShardOptions shard_options(const RunConfig& config);

// A rank that trains. Both collective.
Result<int> threads_of_rank(const RunConfig& config, Control& control);
Result<Engine> make_training_engine(const RunConfig& config, int threads, WorkerControl& control);
// What a rank of so many would train with, but for communicator and shard, and with a measuring
// arena: nothing is allocated.
Result<Engine> make_planned_engine(const RunConfig& config, int ranks, int threads);
// A world of one that only evaluates and generates.
Result<Engine> make_frozen_engine(const RunConfig& config);

}  // namespace trainlaunch
