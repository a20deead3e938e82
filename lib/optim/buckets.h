// Buckets: runs of whole parameters, in the layout's order, that are reduced at once.
#pragma once

#include <cstdint>
#include <vector>

#include "optim/optim.h"

namespace trainlaunch {

struct Bucket {
  int first = 0, last = 0;  // entries [first, last) of the layout
  int64_t offset = 0;       // elements from the start of the flat space
  Owners owners;            // of the bucket's elements: whole tiles, dealt evenly

  int64_t elements() const { return owners.begin.back(); }
};

// A bucket holds as many parameters as fit into `bytes` (f32), at least one. The first is at most
// 1 MiB, so that the first reduction starts early in the backward pass. With `gradients`, what
// waits for several contributions shares no bucket with what does not; with `full`, no bucket is of
// two blocks either.
std::vector<Bucket> plan_buckets(const Layout& layout, std::span<const ParamSpec> specs,
                                 ShardPolicy policy, int64_t bytes, int ranks);

// What is taken where there is nothing to measure.
inline constexpr int64_t usual_bucket = int64_t{25} << 20;

// The largest size that is tried.
inline constexpr int64_t largest_trial = int64_t{64} << 20;

// How large buckets should be on this communicator: the smallest of a few sizes whose reduction
// is nearly as fast, by bytes, as that of the fastest. The same on every rank; collective. `memory`
// is the communicator's, f32; what is in it is lost.
Result<int64_t> measure_bucket(Comm& comm, View memory, DType wire, Seconds timeout);

}  // namespace trainlaunch
