#include "optim/gradients.h"

#include <array>
#include <bit>

#include "optim/plan.h"
#include "optim/weights.h"

namespace trainlaunch {

namespace {

class WholeGradients final : public Gradients {
 public:
  WholeGradients(const ShardParts& parts, const GradientsPlan& plan)
      : device_(parts.device),
        ops_(parts.ops),
        comm_(parts.comm),
        plan_(plan),
        readiness_(plan.layout, plan.specs, plan.buckets),
        reductions_(plan.buckets.size()),
        sums_(plan.specs.size()) {}

  Status prepare() {
    const int64_t n = plan_.layout.elements();
    auto gradients = comm_.alloc("gradients", DType::f32, n);
    if (!gradients) return forward(gradients);
    buffers_ = {*gradients};
    const int more = gradient_buffers(plan_.options.micro_batches, comm_.size()) - 1;
    if (more == 0) return {};
    auto arena = Arena::make(device_, static_cast<size_t>(more * n) * sizeof(float));
    if (!arena) return forward(arena);
    arena_ = std::move(*arena);
    for (int i = 0; i < more; ++i) buffers_.push_back(arena_.take("gradients", DType::f32, {n}));
    return {};
  }

  void begin_step(Stream&) override {
    issued_ = 0;
    micro_ = 0;
    begun_ = 0;
    sums_.restart();
    readiness_.restart();
  }
  void begin_micro(Stream&, bool last) override {
    micro_ = begun_++;
    last_micro_ = last;
    if (tree()) sums_.restart();
    readiness_.restart();
  }
  GradientSum grad_sum(Stream& stream, int param) override {
    const Layout::Entry& e = plan_.layout.of(param);
    return sums_.take(ops_, stream, plan_.specs[param], e, buffer().slice(e.offset, e.whole()));
  }
  void ready(Stream& stream, int param) override {
    if (!readiness_.ready(param)) return;
    if (tree()) join_branches(stream, plan_.buckets[readiness_.bucket_of(param)]);
    if (!last_micro_) return;
    // In the layout's order whatever the order of readiness: ranks without a micro-batch issue so.
    while (issued_ < reductions_.size() && readiness_.done(static_cast<int>(issued_)))
      reduce(stream, issued_++);
  }
  void no_micro(Stream& stream) override {
    if (begun_ == 0) ops_.fill(stream, buffers_[0], 0.0);
    while (issued_ < reductions_.size()) reduce(stream, issued_++);
  }

  Status complete() const override {
    if (issued_ < reductions_.size())
      return fail("an optimizer step was asked for before every gradient was ready");
    if (tree() && begun_ * comm_.size() != plan_.options.micro_batches)
      return fail("this rank had " + std::to_string(begun_) + " of " +
                  std::to_string(plan_.options.micro_batches) + " micro-batches, on " +
                  std::to_string(comm_.size()) + " ranks: that is not its branch of the tree");
    return {};
  }
  Status collect(Stream&, size_t b) override {
    return comm_.wait(reductions_[b], Deadline::in(plan_.options.timeout));
  }
  View own(size_t b) const override {
    const Bucket& bucket = plan_.buckets[b];
    return buffers_[0].slice(bucket.offset + bucket.owners.offset(comm_.rank()),
                             bucket.owners.count(comm_.rank()));
  }
  View sum(const Run& run) const override { return buffers_[0].slice(run.begin, run.size()); }
  View scratch() const override { return buffers_[0]; }

 private:
  // Gradients of micro-batches wait in buffers for the one that they are added to, as on a stack:
  // micro-batch i of this rank finds as many there as i has ones in binary, and, when it is done,
  // is joined with as many as i has ones at its end.
  bool tree() const { return plan_.options.micro_batches > 0; }
  int waiting() const { return tree() ? std::popcount(static_cast<uint64_t>(micro_)) : 0; }
  View buffer() const { return buffers_[waiting()]; }
  void join_branches(Stream& stream, const Bucket& b) {
    const auto part = [&](View whole) { return whole.slice(b.offset, b.elements()); };
    int top = waiting();
    for (int n = std::countr_one(static_cast<uint64_t>(micro_)); n > 0; --n, --top) {
      const std::array<View, 2> both{part(buffers_[top - 1]), part(buffers_[top])};
      ops_.sum(stream, both[0], both);
    }
  }

  // Over the ranks: on the owners, or on all ranks where all of them update.
  void reduce(Stream& stream, size_t b) {
    const Bucket& bucket = plan_.buckets[b];
    const View part = buffers_[0].slice(bucket.offset, bucket.elements());
    const DType wire = plan_.options.wire;
    reductions_[b] = plan_.options.policy == ShardPolicy::none
                         ? comm_.all_reduce(part, bucket.owners, wire, stream.record())
                         : comm_.reduce_scatter(part, bucket.owners, wire, stream.record());
  }

  Device& device_;
  Ops& ops_;
  Comm& comm_;
  const GradientsPlan plan_;
  Readiness readiness_;
  std::vector<Ticket> reductions_;  // by bucket
  BegunSums sums_;                  // of this step, or with a tree of this micro-batch
  Arena arena_;
  std::vector<View> buffers_;  // f32 [layout.elements()]; the first is memory of comm_
  bool last_micro_ = false;
  int64_t begun_ = 0, micro_ = 0;  // micro-batches of this step; the present one
  size_t issued_ = 0;              // buckets whose reduction was issued in this step
};

}  // namespace

Readiness::Readiness(const Layout& layout, std::span<const ParamSpec> specs,
                     std::span<const Bucket> buckets)
    : bucket_of_(specs.size()) {
  for (const ParamSpec& s : specs) contributions_.push_back(s.contributions);
  for (size_t b = 0; b < buckets.size(); ++b) {
    parameters_.push_back(buckets[b].last - buckets[b].first);
    for (int i = buckets[b].first; i < buckets[b].last; ++i)
      bucket_of_[layout.entries[i].param] = static_cast<int>(b);
  }
  restart();
}

void Readiness::restart() {
  left_ = contributions_;
  missing_ = parameters_;
}

bool Readiness::ready(int param) {
  return --left_[param] == 0 && --missing_[bucket_of_[param]] == 0;
}

GradientSum BegunSums::take(Ops& ops, Stream& stream, const ParamSpec& spec,
                            const Layout::Entry& entry, View flat) {
  const GradientSum sum{view_of(flat, spec, 0), begun_[entry.param]};
  if (!sum.begun && flat.size() > entry.size)
    ops.fill(stream, flat.slice(entry.size, flat.size() - entry.size), 0.0);
  begun_[entry.param] = true;
  return sum;
}

Result<std::unique_ptr<Gradients>> make_gradients(const ShardParts& parts,
                                                  const GradientsPlan& plan) {
  if (needs_equal_passes(plan.options.policy)) return make_passing_gradients(parts, plan);
  auto gradients = std::make_unique<WholeGradients>(parts, plan);
  if (auto s = gradients->prepare(); !s) return forward(s);
  return gradients;
}

}  // namespace trainlaunch
