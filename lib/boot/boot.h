// lib/boot: who am I among which ranks, and how do we talk before there is a communicator. This
// header is the folder's front door.
//
//   World              rank, size, place on the node; filled by a bootstrap
//   Control            the control channel: small messages between all ranks, with deadlines
//   bootstrap.h        PMIx (Slurm, mpirun), or alone: how supervisors find each other
//   session.h          the supervisor's side of the channel; its centre, in rank 0, is hub.h
//
// The process that srun starts is a supervisor: it is the PMIx client and holds the control
// channel. The process that computes is its child, the worker, and reaches the channel through it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"

namespace trainlaunch {

struct World {
  // Ranks count by node and then by local rank. Where the launcher dealt them out otherwise
  // (srun -m cyclic), these are not its numbers: PMIx rank and SLURM_PROCID differ.
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this node
  int local_size = 1;
  int node = 0;                                 // index into `nodes`
  std::vector<std::string> nodes{"localhost"};  // one name per node, in the order of their ranks
  std::vector<int> node_of{0};                  // of each rank
  int generation = 0;  // how often the workers have been restarted within this job step

  const std::string& node_name(int of_rank) const { return nodes[node_of[of_rank]]; }
};

// Small messages between all ranks. Every call blocks until it is answered or its deadline is over;
// an error names the ranks that were waited for. The n-th gather of a name on one rank meets the
// n-th gather of that name on every other, so calls of different names may come from different
// threads; one that failed on any rank fails on all. barrier and vote are gathers.
class Control {
 public:
  static constexpr size_t max_value = 1 << 20;  // bytes of one value

  virtual ~Control() = default;
  virtual const World& world() const = 0;

  // A value under a key that any rank may wait for. A key is written once in a generation.
  virtual Status put(std::string_view key, std::string_view value) = 0;
  virtual Result<std::string> get(std::string_view key, Deadline deadline) = 0;

  // Everyone's value, in rank order.
  virtual Result<std::vector<std::string>> gather(std::string_view name, std::string_view mine,
                                                  Deadline deadline) = 0;
  Status barrier(std::string_view name, Deadline deadline);
  // True when every rank voted true.
  Result<bool> vote(std::string_view name, bool mine, Deadline deadline);
};

// A world of one, answered locally.
std::unique_ptr<Control> make_single_control();

// In a worker: the channel that its supervisor handed to it, or a world of one when it has none.
// local_sockets() are connected AF_UNIX SOCK_SEQPACKET sockets to the workers of this node, indexed
// by local rank (-1 for the own), over which descriptors of shared memory are passed; empty when
// the node's ranks cannot reach each other so.
class WorkerControl : public Control {
 public:
  virtual const std::vector<int>& local_sockets() const = 0;
  // Tells the supervisor how far the worker is; read by heartbeats and failure reports.
  virtual void progress(uint64_t step, std::string_view phase) noexcept = 0;
  // Why the worker is about to exit with an error. Whether it is printed is for the supervisors to
  // say, who know which failure of the job came first. False: there is no supervisor.
  virtual bool failed(std::string_view why) noexcept = 0;
};
Result<std::unique_ptr<WorkerControl>> make_worker_control();

}  // namespace trainlaunch
