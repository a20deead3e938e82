// The weights of a rank: those that compute, in memory of the communicator, and those that are
// updated ("masters", f32), which are the same memory where that is possible.
#pragma once

#include <vector>

#include "optim/rotation.h"
#include "optim/share.h"

namespace trainlaunch {

class Weights {
 public:
  virtual ~Weights() = default;

  // Weights of a block, from acquire until release.
  virtual void acquire(Stream& stream, int block) = 0;
  virtual void release(int block) = 0;
  virtual View weight(int param) const = 0;
  virtual void no_pass() = 0;  // no block will be acquired in this step

  // Of a run that this rank updates: the master, and the copy that is to be written with it (of the
  // ops' type), or null where the master is what computes.
  virtual View master(const Run& run) const = 0;
  virtual View copy(const Run& run) const = 0;
  // Collective. The runs of a bucket have been updated, in the order of buckets; then, all have.
  virtual void updated(Stream& stream, size_t bucket) = 0;
  virtual void all_updated(Stream& stream) = 0;
  // Collective. Masters were written by other means: what computes follows. `update` and `rule`
  // say how to round, as the update itself would have.
  virtual Status refresh(Stream& stream, const Rule& rule, uint64_t update) = 0;

  // The first error of a gather, which is told by the next step.
  const Status& status() const { return status_; }

 protected:
  Status status_;
};

// What weights are made from.
struct WeightsPlan {
  const ShardOptions& options;
  const Layout& layout;
  std::span<const ParamSpec> specs;
  const std::vector<Bucket>& buckets;
  const Share& own;      // what this rank keeps
  const Share& updates;  // what it updates: the same, or everything
};

// Elements of the ops' type, in memory of the communicator.
int64_t weight_elements(ShardPolicy policy, const Layout& layout, std::span<const ParamSpec> specs);

// `memory` is [weight_elements]. With `full` the rank has its own weights and, for a time, those of
// a few blocks; else all of them.
Result<std::unique_ptr<Weights>> make_weights(const ShardParts& parts, const WeightsPlan& plan,
                                              View memory);
Result<std::unique_ptr<Weights>> make_block_weights(const ShardParts& parts,
                                                    const WeightsPlan& plan, View memory);

// f32 elements of masters apart from the weights, and of the own copy of weights, on a rank that
// keeps `kept` elements.
struct WeightCopies {
  int64_t masters = 0, copies = 0;
};
WeightCopies weight_copies(ShardPolicy policy, DType compute, int64_t kept);

// `from` (f32) as the ops' type, rounded as an update would: elements of the flat space from
// `element` on.
Status round_copy(Device& device, Ops& ops, Stream& stream, const Rule& rule, uint64_t update,
                  View from, View to, int64_t element);

// The initial weights of a run of a parameter.
Status initialise_run(Device& device, Stream& stream, const ParamSpec& spec,
                      const Layout::Entry& entry, uint64_t seed, const Run& run, View master);

// A parameter within a flat space, in its shape.
View view_of(View flat, const ParamSpec& spec, int64_t offset);

}  // namespace trainlaunch
