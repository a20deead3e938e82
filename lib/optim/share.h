// Which part of the flat space is a rank's.
#pragma once

#include <span>
#include <vector>

#include "optim/buckets.h"

namespace trainlaunch {

// Tiles of one parameter, one after the other.
struct Run {
  int param = 0;
  int64_t begin = 0, end = 0;  // elements of the flat space
  int64_t kept = 0;            // where the first one is in what the rank keeps
  int64_t size() const { return end - begin; }
};

// Runs by rising offset, and which of them are in which bucket.
struct Share {
  std::vector<Run> runs;
  std::vector<size_t> first{0};  // run of each bucket, and the number of runs at the end
  int64_t elements = 0;          // kept

  std::span<const Run> of(size_t bucket) const {
    return std::span(runs).subspan(first[bucket], first[bucket + 1] - first[bucket]);
  }
};

// What is the rank's own. It keeps these runs one after the other, or, with `none`, all of the
// space, where they are in their places.
Share own_share(const Layout& layout, std::span<const Bucket> buckets, ShardPolicy policy,
                int rank);
// Everything.
Share whole_share(const Layout& layout, std::span<const Bucket> buckets);

}  // namespace trainlaunch
