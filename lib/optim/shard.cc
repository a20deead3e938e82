// The shard that trains: gradients are reduced while the backward pass runs (gradients.h); a step
// clips, updates what the rank has to, and sees to it that the new weights are where they are
// needed (weights.h).
#include <algorithm>
#include <cmath>

#include "optim/gradients.h"
#include "optim/plan.h"
#include "optim/weights.h"

namespace trainlaunch {

namespace {

class TrainingShard final : public Shard {
 public:
  TrainingShard(const ShardParts& parts, const ShardOptions& options)
      : device_(parts.device),
        ops_(parts.ops),
        comm_(parts.comm),
        specs_(parts.specs.begin(), parts.specs.end()),
        layout_(parts.layout),
        options_(options) {}

  // Everything a step needs is allocated here, nothing later.
  Status prepare(const ShardParts& parts) {
    if (ops_.wide() != DType::f32)
      return fail(std::string("the ") + ops_.name() + " operations compute in " +
                  name_of(ops_.dtype()) + "; training needs f32 or bf16");
    auto memory =
        comm_.alloc("weights", ops_.dtype(), weight_elements(options_.policy, layout_, specs_));
    if (!memory) return forward(memory);
    if (auto s = plan_buckets_in(*memory); !s) return s;

    own_ = own_share(layout_, buckets_, options_.policy, comm_.rank());
    updated_ = replicated() ? whole_share(layout_, buckets_) : own_;
    auto weights =
        make_weights(parts, {options_, layout_, specs_, buckets_, own_, updated_}, *memory);
    if (!weights) return forward(weights);
    weights_ = std::move(*weights);
    auto gradients = make_gradients(parts, {options_, layout_, specs_, buckets_, own_});
    if (!gradients) return forward(gradients);
    gradients_ = std::move(*gradients);

    plan_norm();
    auto sums = comm_.alloc("gradient norms", DType::f64, layout_.tiles);
    if (!sums) return forward(sums);
    sums_ = *sums;
    auto arena = Arena::fitting(device_, [this](Arena& a) { take_state(a); });
    if (!arena) return forward(arena);
    arena_ = std::move(*arena);
    return initialise_weights(parts.seed);
  }

  void acquire(Stream& stream, int block) override { weights_->acquire(stream, block); }
  void release(Stream&, int block) override { weights_->release(block); }
  View weight(int param) override { return weights_->weight(param); }

  void begin_step(Stream& stream) override {
    stream_ = &stream;
    gradients_->begin_step(stream);
  }
  void begin_micro(Stream& stream, bool last) override { gradients_->begin_micro(stream, last); }
  View grad(int param) override {
    const GradientSum sum = grad_sum(param);
    if (!sum.begun) ops_.fill(*stream_, sum.to, 0.0);
    return sum.to;
  }
  GradientSum grad_sum(int param) override { return gradients_->grad_sum(*stream_, param); }
  void ready(Stream& stream, int param) override { gradients_->ready(stream, param); }
  void no_micro(Stream& stream) override {
    weights_->no_pass();
    gradients_->no_micro(stream);
  }

  Result<StepStats> step(Stream& stream, const StepScalars& scalars) override {
    if (!weights_->status()) return tl::unexpected(weights_->status().error());
    if (auto s = gradients_->complete(); !s) return forward(s);
    auto norm = gradient_norm(stream, scalars.tokens);
    if (!norm) return forward(norm);
    StepStats stats;
    stats.grad_norm = *norm;
    stats.skipped = !std::isfinite(*norm) || *norm > scalars.norm_limit;
    if (!stats.skipped) update(stream, scalars, *norm);
    return stats;
  }

  std::vector<Piece> owned() const override {
    std::vector<Piece> pieces;
    for (const Run& r : own_.runs) {
      pieces.push_back(piece(r, "weight", weights_->master(r)));
      pieces.push_back(piece(r, "m", m_.slice(r.kept, r.size())));
      pieces.push_back(piece(r, "v", v_.slice(r.kept, r.size())));
    }
    return pieces;
  }
  std::vector<Piece> wanted() const override { return owned(); }

  Status spread(Stream& stream) override {
    if (replicated()) {
      if (auto s = replicate(stream); !s) return s;
    }
    return weights_->refresh(stream, options_.rule, updates_);
  }

  uint64_t updates() const override { return updates_; }
  void set_updates(uint64_t n) override { updates_ = n; }

  int64_t bucket_bytes() const override { return options_.bucket_bytes; }

 private:
  bool replicated() const { return options_.policy == ShardPolicy::none; }
  Deadline deadline() const { return Deadline::in(options_.timeout); }

  // Measures, if need be, in memory that is not in use yet.
  Status plan_buckets_in(View memory) {
    if (options_.bucket_bytes == 0) {
      const View trial(memory.p, DType::f32,
                       {static_cast<int64_t>(memory.bytes() / sizeof(float))});
      auto bytes = measure_bucket(comm_, trial, options_.wire, options_.timeout);
      if (!bytes) return forward(bytes);
      options_.bucket_bytes = *bytes;
    }
    buckets_ = plan_buckets(layout_, specs_, options_.policy, options_.bucket_bytes, comm_.size());
    return {};
  }

  // Where the sums of squares of each rank's tiles are among those of all.
  void plan_norm() {
    sums_owners_.begin.assign(1, 0);
    for (int rank = 0; rank < comm_.size(); ++rank) {
      int64_t tiles = sums_owners_.begin.back();
      for (const Bucket& b : buckets_) tiles += b.owners.count(rank) / Layout::tile;
      sums_owners_.begin.push_back(tiles);
    }
    host_sums_.resize(layout_.tiles);
  }

  void take_state(Arena& arena) {
    m_ = arena.take("optimizer state", DType::f32, {own_.elements});
    v_ = arena.take("optimizer state", DType::f32, {own_.elements});
    scalars_ = arena.take("step scalars", DType::f64, {update_scalars});
  }

  Status initialise_weights(uint64_t seed) {
    auto stream = device_.stream();
    if (!stream) return forward(stream);
    for (const Run& r : updated_.runs) {
      auto s = initialise_run(device_, **stream, specs_[r.param], layout_.of(r.param), seed, r,
                              weights_->master(r));
      if (!s) return s;
    }
    return weights_->refresh(**stream, options_.rule, 0);
  }

  // Of the mean gradient, over all ranks and parameters. Each tile's sum of squares is taken on its
  // owner as soon as its bucket is there, and all are added up in the tiles' order: the bits depend
  // on no rank.
  Result<double> gradient_norm(Stream& stream, double tokens) {
    const Traced traced(options_.trace, "optimizer", "reduce");
    int64_t next = sums_owners_.offset(comm_.rank());
    for (size_t b = 0; b < buckets_.size(); ++b) {
      if (auto s = gradients_->collect(stream, b); !s) return forward(s);
      const int64_t count = buckets_[b].owners.count(comm_.rank());
      if (count == 0) continue;
      ops_.sumsq(stream, gradients_->own(b), Layout::tile, sums_.slice(next, count / Layout::tile));
      next += count / Layout::tile;
    }
    const Ticket gathered = comm_.all_gather(sums_, sums_owners_, stream.record());
    if (auto ok = comm_.wait(gathered, deadline()); !ok) return forward(ok);
    device_.download(stream, View(host_sums_.data(), DType::f64, {sums_.size()}), sums_);
    if (auto ok = stream.record().wait(deadline()); !ok) return forward(ok);
    return std::sqrt(sum_of_squares()) / tokens;
  }

  double sum_of_squares() const {
    std::vector<int64_t> next(sums_owners_.begin.begin(), sums_owners_.begin.end() - 1);
    double sum = 0;
    for (const Bucket& b : buckets_) {
      for (size_t rank = 0; rank < next.size(); ++rank) {
        const int64_t tiles = b.owners.count(static_cast<int>(rank)) / Layout::tile;
        for (int64_t i = 0; i < tiles; ++i) sum += host_sums_[next[rank]++];
      }
    }
    return sum;
  }

  void update(Stream& stream, const StepScalars& scalars, double norm) {
    const Traced traced(options_.trace, "optimizer", "update");
    const Rule& rule = options_.rule;
    const double t = static_cast<double>(++updates_);
    const bool clipped = scalars.clip > 0 && norm > scalars.clip;
    host_scalars_[learning_rate] = scalars.lr;
    host_scalars_[grad_scale] = (clipped ? scalars.clip / norm : 1.0) / scalars.tokens;
    host_scalars_[correction1] = 1.0 - std::pow(static_cast<double>(rule.beta1), t);
    host_scalars_[correction2] = 1.0 - std::pow(static_cast<double>(rule.beta2), t);
    host_scalars_[update_step] = static_cast<double>(static_cast<uint32_t>(updates_));
    device_.upload(stream, scalars_, View(host_scalars_.data(), DType::f64, {update_scalars}));

    for (size_t b = 0; b < buckets_.size(); ++b) {
      for (const Run& r : updated_.of(b)) update_run(stream, r);
      weights_->updated(stream, b);
    }
    weights_->all_updated(stream);
  }

  void update_run(Stream& stream, const Run& r) {
    Rule rule = options_.rule;
    if (specs_[r.param].group != Group::decay) rule.weight_decay = 0.0f;
    ops_.update(stream, rule,
                {weights_->master(r), gradients_->sum(r), m_.slice(r.kept, r.size()),
                 v_.slice(r.kept, r.size()), weights_->copy(r), static_cast<uint64_t>(r.begin)},
                scalars_);
  }

  // Masters and state, of which each rank has loaded its own part, on every rank. Only memory of
  // the communicator travels: the gradients' is free now.
  Status replicate(Stream& stream) {
    const View all = gradients_->scratch();
    const auto through = [&](const auto& place) -> Status {
      for (const Run& r : updated_.runs) ops_.copy(stream, place(r), all.slice(r.begin, r.size()));
      std::vector<Ticket> tickets;
      for (const Bucket& b : buckets_)
        tickets.push_back(
            comm_.all_gather(all.slice(b.offset, b.elements()), b.owners, stream.record()));
      for (const Ticket t : tickets)
        if (auto s = comm_.wait(t, deadline()); !s) return s;
      for (const Run& r : updated_.runs) ops_.copy(stream, all.slice(r.begin, r.size()), place(r));
      return {};
    };
    if (auto s = through([&](const Run& r) { return weights_->master(r); }); !s) return s;
    for (const View state : {m_, v_})
      if (auto s = through([&](const Run& r) { return state.slice(r.kept, r.size()); }); !s)
        return s;
    return stream.record().wait(deadline());
  }

  // The rest of a parameter's last tile is in no checkpoint.
  Piece piece(const Run& r, const char* slot, View mem) const {
    const Layout::Entry& e = layout_.of(r.param);
    const int64_t n = std::min(r.end, e.offset + e.size) - r.begin;
    return {specs_[r.param].name, slot, r.begin - e.offset, n, mem.slice(0, n)};
  }

  Device& device_;
  Ops& ops_;
  Comm& comm_;
  const std::vector<ParamSpec> specs_;
  const Layout layout_;
  ShardOptions options_;

  std::vector<Bucket> buckets_;
  Share own_, updated_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<Gradients> gradients_;
  Stream* stream_ = nullptr;  // of this step

  View sums_;           // f64 [layout_.tiles], memory of comm_: squares of gradients
  Owners sums_owners_;  // of sums_, which has the tiles of each rank together
  Arena arena_;
  View m_, v_;                                            // f32 [own_.elements]
  View scalars_;                                          // f64 [update_scalars]
  std::vector<double> host_sums_;                         // a copy of sums_
  std::array<double, update_scalars> host_scalars_ = {};  // what scalars_ is copied from
  uint64_t updates_ = 0;
};

}  // namespace

Result<std::unique_ptr<Shard>> make_shard(const ShardParts& parts, const ShardOptions& options) {
  auto shard = std::make_unique<TrainingShard>(parts, options);
  if (auto ok = shard->prepare(parts); !ok) return forward(ok);
  return shard;
}

}  // namespace trainlaunch
