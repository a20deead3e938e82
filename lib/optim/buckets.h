// Buckets: runs of whole parameters, in the layout's order, that are reduced at once.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/comm.h"
#include "model/model.h"

namespace trainlaunch {

struct Bucket {
  int first = 0, last = 0;  // entries [first, last) of the layout
  int64_t offset = 0;       // elements from the start of the flat space
  Owners owners;            // of the bucket's elements: whole tiles, dealt evenly

  int64_t elements() const { return owners.begin.back(); }
};

// A bucket holds as many parameters as fit into `bytes` (f32), at least one. The first is at most
// 1 MiB, so that the first reduction starts early in the backward pass.
std::vector<Bucket> plan_buckets(const Layout& layout, int64_t bytes, int ranks);

}  // namespace trainlaunch
