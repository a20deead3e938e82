// The communicator of more than one rank. Ranks that share memory are a node (comm/node.h); a rank
// that shares with nobody is a node for itself. Between nodes, if there are several, messages go
// over a Mesh.
//
// reduce_scatter   for each owner elsewhere, one rank of every node (its envoy there) sums what the
//                  ranks of the node have for it and sends the partial sum; the owner adds the
//                  nodes' partial sums. Order: ranks within a node, then nodes. In the order of a
//                  tree, branches that lie within a node take the place of nodes, and are the nodes
//                  where these have equally many ranks, a power of two.
// all_reduce       on one node the owner writes its sums to all ranks; else the two others in turn.
// all_gather       an owner sends its part to its envoy on every other node, where the others copy
//                  it from.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "comm/groups.h"
#include "comm/mesh.h"
#include "comm/node.h"
#include "comm/queue.h"
#include "comm/sum.h"

namespace trainlaunch {

class Hierarchy final : public Comm, private Queue::Runner {
 public:
  // `first` has the first rank of each node, and the number of ranks at its end. `mesh` is null for
  // a single node.
  Hierarchy(const World& world, std::vector<int> first, std::unique_ptr<Node> node,
            std::unique_ptr<Mesh> mesh, const CommOptions& options);
  ~Hierarchy() override;

  const char* name() const override { return mesh_ ? "network" : "shared"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Result<View> alloc(std::string_view what, DType t, int64_t count) override;
  Ticket reduce_scatter(View v, const Owners& owners, DType wire, Event after) override;
  Ticket all_reduce(View v, const Owners& owners, DType wire, Event after) override;
  Ticket all_gather(View v, const Owners& owners, Event after) override;
  Status wait(Ticket ticket, Deadline deadline) override;
  Status all_sum(std::span<double> values, Deadline deadline) override;
  Status broadcast(View v, int root, Deadline deadline) override;
  Status barrier(Deadline deadline) override;
  void abort() noexcept override;
  Moved moved() const override;

 private:
  Group node_group(int node) const { return {node, first_[node], count_on(node)}; }

  Status run(const Call& call) override;
  void stop(Stop why) noexcept override;
  void failed(const Error& error) noexcept override;
  void shut() noexcept override;

  Call collective(Kind kind, View v, const Owners& owners, Event after) const;
  Ticket issue_sum(Kind kind, View v, const Owners& owners, DType wire, Event after);
  Ticket issue(Call call);
  Status run_now(Call call, Deadline deadline);
  Status dispatch(const Call& call);
  Status run_reduce_scatter(const Call& call);
  Status run_all_reduce(const Call& call);
  Status run_all_gather(const Call& call);
  Status run_all_sum(const Call& call);
  Status run_broadcast(const Call& call);
  Status swap_between_leaders(const Call& call, uint64_t slot, std::byte* blocks, size_t per_rank);
  void add_ranks(const Call& call, const Group& group, int64_t offset, int64_t count,
                 std::vector<Branch>& in);
  void sum(float* out, const std::vector<Branch>& in, int64_t count) const;
  void sum_group(const Call& call, int64_t offset, int64_t count);
  Status send(int to, uint64_t slot, const void* p, size_t bytes, std::vector<Transfer>& list);
  Status receive(int from, uint64_t slot, void* p, size_t bytes, std::vector<Transfer>& list);
  Status finish(std::vector<Transfer>& list, Deadline deadline);

  int nodes() const { return static_cast<int>(first_.size()) - 1; }
  int count_on(int node) const { return first_[node + 1] - first_[node]; }

  struct Memory {
    View own;
    std::vector<std::byte*> local;
  };

  const int rank_, size_;
  const CommOptions options_;
  const std::vector<int> first_;
  const std::vector<Group> groups_;
  int my_node_ = 0;
  Group mine_{};  // of groups_
  std::unique_ptr<Node> node_;
  std::vector<Memory> memories_;
  std::vector<float> scratch_;  // partial sums from other nodes
  std::unique_ptr<Mesh> mesh_;
  uint32_t staged_ = 0;            // how often the stage was used
  std::map<Ticket, Call> issued_;  // not waited for: what they were
  std::atomic<bool> stopped_{false};
  std::atomic<uint64_t> sent_{0}, received_{0}, shared_{0};
  std::optional<Queue> queue_;  // its thread uses all of the above
};

}  // namespace trainlaunch
