// lib/comm: moving numbers between ranks. This header is the folder's front door.
//
//   single      a world of one
//   shared      ranks of one node: the buffers lie in memory that all of them map, and are reduced
//               in place at memory speed
//   network     ranks of several nodes: Gloo's send and receive between nodes, `shared` within each
//
// Collectives are asynchronous: they are issued in the same order on every rank, run in that order
// in the background, and are waited for by their Ticket. Sums are taken in one fixed order
// (SumOrder), so the same ranks give the same bits every time. A communicator that failed, timed
// out or was aborted is never used again; what can still be called returns the first error.
// Recovery is a new communicator of the next generation.
//
// One thread makes the calls; only abort() and moved() are for any.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/base.h"
#include "boot/boot.h"

namespace trainlaunch {

// Who owns which part of a View: rank r owns elements [begin[r], begin[r+1]). Empty parts are fine.
struct Owners {
  std::vector<int64_t> begin;  // size + 1 ascending offsets, from 0 to the View's size
  int64_t offset(int rank) const { return begin[rank]; }
  int64_t count(int rank) const { return begin[rank + 1] - begin[rank]; }
};

using Ticket = uint64_t;

struct Moved {
  uint64_t sent = 0, received = 0;  // payload bytes between nodes, since the start
  uint64_t shared = 0;  // payload bytes read from, or written to, other ranks of the node

  Moved& operator+=(const Moved& m) {
    sent += m.sent;
    received += m.received;
    shared += m.shared;
    return *this;
  }
  friend Moved operator*(uint64_t times, const Moved& m) {
    return {times * m.sent, times * m.received, times * m.shared};
  }
};

class Comm {
 public:
  virtual ~Comm() = default;
  virtual const char* name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Memory that collectives work on, zeroed. A collective call: every rank asks for the same things
  // in the same order. Freed with the communicator.
  virtual Result<View> alloc(std::string_view what, DType t, int64_t count) = 0;

  // Views lie within memory from alloc, at the same place on every rank. The work starts when
  // `after` is done. A View belongs to the collective until its Ticket has been waited for.
  // reduce_scatter: the own part becomes the sum over ranks; the other parts are undefined after.
  // f32 only; `wire` is what travels between nodes: f32, or bf16, to which each node's part of the
  // sum is rounded then (not in the order of a tree). Within a node nothing is rounded.
  virtual Ticket reduce_scatter(View v, const Owners& owners, DType wire, Event after) = 0;
  // all_reduce: every part becomes the sum over ranks, with the bits that a reduce_scatter and an
  // all_gather give, in fewer passes over memory.
  virtual Ticket all_reduce(View v, const Owners& owners, DType wire, Event after) = 0;
  // all_gather: every part becomes its owner's. Any type.
  virtual Ticket all_gather(View v, const Owners& owners, Event after) = 0;
  virtual Status wait(Ticket ticket, Deadline deadline) = 0;

  // Blocking, on host memory of the caller; sums in rank order, in f64, equal bits on every rank.
  virtual Status all_sum(std::span<double> values, Deadline deadline) = 0;
  virtual Status broadcast(View v, int root, Deadline deadline) = 0;
  virtual Status barrier(Deadline deadline) = 0;

  // Makes every blocked and later call on this rank fail soon; safe from any thread.
  virtual void abort() noexcept = 0;
  virtual Moved moved() const = 0;
};

// How reduce_scatter adds up. `nodes`: within a node by local rank, then by node. `tree`:
// neighbours first, then neighbouring pairs, and so on, (0+1)+(2+3), wherever the ranks are; their
// number must be a power of two. Not more is sent where each node has one whole branch of the tree.
enum class SumOrder : uint8_t { nodes, tree };

struct CommOptions {
  Seconds timeout{300};   // of one background collective
  std::string interface;  // for traffic between nodes; empty: what GLOO_SOCKET_IFNAME says,
                          // else the interface that routes to another node
  SumOrder order = SumOrder::nodes;
  Trace* trace = nullptr;  // track "comm"
};

// The right communicator for a world: single, shared where all ranks are on one node that can share
// memory, else network. `local_sockets` is WorkerControl::local_sockets().
Result<std::unique_ptr<Comm>> make_comm(Control& control, const std::vector<int>& local_sockets,
                                        const CommOptions& options);

}  // namespace trainlaunch
