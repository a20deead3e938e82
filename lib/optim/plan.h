// What a form of data parallelism costs, before anything is allocated or sent.
#pragma once

#include "comm/traffic.h"
#include "optim/optim.h"

namespace trainlaunch {

// What is planned for. A measured bucket (ShardOptions::bucket_bytes 0) counts as usual_bucket.
struct ShardSetup {
  const ShardOptions& options;
  std::span<const ParamSpec> specs;
  const Layout& layout;
  DType compute = DType::f32;  // Ops::dtype()
};

// What the shard of one rank takes, in bytes. Formulas, for N parameters (in whole tiles), R ranks,
// w bytes of a weight as it computes (4 or 2), B the buffers of the next line:
//
//              weights    masters     gradients      optimizer   buffers
//   none       w N        4 N, w=2    4 N, a tree    8 N         -
//   optimizer  w N        4 N/R, w=2  has more       8 N/R       -
//   gradients  w N        4 N/R, w=2  4 N/R          8 N/R       passing gradients
//   full       2 N/R, w=2 4 N/R       4 N/R          8 N/R       those, and blocks of weights
struct MemoryPlan {
  uint64_t weights = 0, masters = 0, gradients = 0, optimizer = 0, buffers = 0;
  uint64_t total() const { return weights + masters + gradients + optimizer + buffers; }
};
MemoryPlan memory_of(const ShardSetup& setup, int rank, int ranks);

// What the communicator of that rank keeps for partial sums from other nodes, in bytes.
uint64_t memory_for_sums(const ShardSetup& setup, int rank, const Places& places);

// What one rank moves in a step in which every rank runs `passes` passes: equal to what
// Comm::moved() counts from one step to the next. In bytes of the view, for R ranks, w as above, P
// passes and wire bytes g (4 or 2), each of which a node that others are on sends once to each:
//
//   none       g N reduced, 4 N gathered      gradients  P g N reduced, w N gathered
//   optimizer  g N reduced, w N gathered      full       P g N reduced, about 2 P w N gathered
//
// and N/128 for the norm, in any form.
Moved traffic_of(const ShardSetup& setup, int rank, const Places& places, int64_t passes);

// Buffers as large as the model that each rank keeps for gradients with `none` and `optimizer`:
// without a tree one; with one, log2 of the rank's micro-batches more.
int gradient_buffers(int64_t micro_batches, int ranks);

}  // namespace trainlaunch
