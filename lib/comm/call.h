// One collective, as every part of a communicator sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/comm.h"

namespace trainlaunch {

enum class Kind : uint8_t { reduce_scatter, all_reduce, all_gather, all_sum, broadcast, barrier };

struct Call {
  Kind kind = Kind::barrier;
  Ticket ticket = 0;  // counts calls from 1; the same call has the same ticket on all ranks
  View view;          // all but all_sum and barrier
  uint64_t memory = 0, offset = 0;  // which allocation the view lies in, and where, in bytes
  Owners owners;                    // reduce_scatter, all_reduce, all_gather
  DType wire = DType::f32;          // reduce_scatter, all_reduce
  std::vector<std::byte*> local;    // where the view is in the memory of each rank of this node
  std::span<double> values;         // all_sum
  int root = 0;                     // broadcast
  Event after;
  bool background = false;  // its deadline starts when it is run
  Deadline deadline;
  std::string refused;  // what is wrong with the arguments, if anything is

  uint64_t signature = 0;  // equal on two ranks when they made the same call

  size_t bytes() const { return kind == Kind::all_sum ? values.size_bytes() : view.bytes(); }
  void sign();  // when all is filled in
};

// "reduce_scatter 12 (3.1 MB)", for errors and traces.
std::string describe(const Call& call);

// Why a wait is given up before its deadline.
enum class Stop : int { none, aborted, expired };

// "rank 3 on n2"
std::string describe_rank(const World& world, int rank);

}  // namespace trainlaunch
