// Where a rank's gradients are added up, and the reduction of them over the ranks in buckets.
#pragma once

#include <vector>

#include "optim/share.h"

namespace trainlaunch {

class Gradients {
 public:
  virtual ~Gradients() = default;

  // As in Shard.
  virtual void begin_step(Stream& stream) = 0;
  virtual void begin_micro(Stream& stream, bool last) = 0;
  virtual GradientSum grad_sum(Stream& stream, int param) = 0;
  virtual void ready(Stream& stream, int param) = 0;
  virtual void no_micro(Stream& stream) = 0;

  // Whether all reductions of the step are under way; else what is wrong.
  virtual Status complete() const = 0;
  // Waits until a bucket is reduced; buckets in order.
  virtual Status collect(Stream& stream, size_t bucket) = 0;
  // Then: the sum over ranks and micro-batches of what this rank owns of a bucket, and of a run
  // that it updates.
  virtual View own(size_t bucket) const = 0;
  virtual View sum(const Run& run) const = 0;

  // f32 [layout.elements()], memory of the communicator, free between steps; null if there is none.
  virtual View scratch() const { return {}; }
};

struct GradientsPlan {
  const ShardOptions& options;
  const Layout& layout;
  std::span<const ParamSpec> specs;
  const std::vector<Bucket>& buckets;
  const Share& own;
};

// With `none` and `optimizer`: everything in one buffer, reduced on the last micro-batch. With the
// others: through a few buffers, reduced at once; the model must let gradients become ready nearly
// in the layout's order (see passing_buffers).
Result<std::unique_ptr<Gradients>> make_gradients(const ShardParts& parts,
                                                  const GradientsPlan& plan);
Result<std::unique_ptr<Gradients>> make_passing_gradients(const ShardParts& parts,
                                                          const GradientsPlan& plan);

// Which buckets are under work at once: a weight becomes ready before its bias, which comes first
// in the layout, so that two are; a third one travels.
inline constexpr int passing_buffers = 3;
// f32 elements of these buffers together.
int64_t passing_elements(const Layout& layout, std::span<const ParamSpec> specs,
                         std::span<const Bucket> buckets);

// Which parameters' sums have begun.
class BegunSums {
 public:
  explicit BegunSums(size_t params) : begun_(params) {}
  void restart() { begun_.assign(begun_.size(), false); }
  // The sum of a parameter, whose tiles are `flat`: it has begun hereafter. The rest of the last
  // tile is cleared at the beginning, because what is done with tiles is done with all of them.
  GradientSum take(Ops& ops, Stream& stream, const ParamSpec& spec, const Layout::Entry& entry,
                   View flat);

 private:
  std::vector<bool> begun_;  // by parameter
};

// Which bucket a parameter is in, and how many contributions are missing in a micro-batch.
class Readiness {
 public:
  Readiness(const Layout& layout, std::span<const ParamSpec> specs,
            std::span<const Bucket> buckets);
  void restart();
  int bucket_of(int param) const { return bucket_of_[param]; }
  // Whether this contribution completes its bucket.
  bool ready(int param);
  bool done(int bucket) const { return missing_[bucket] == 0; }

 private:
  std::vector<int> bucket_of_, contributions_, left_;  // by parameter
  std::vector<int> parameters_, missing_;              // by bucket
};

}  // namespace trainlaunch
