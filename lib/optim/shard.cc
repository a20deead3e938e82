// The shard that trains. Gradients are summed over the ranks in buckets while the backward pass
// runs; a step clips, updates and, where each rank updates only its own tiles, gathers the weights.
#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "optim/buckets.h"
#include "optim/weights.h"

namespace trainlaunch {

namespace {

// Tiles of one parameter, one after the other.
struct Run {
  int param;
  int64_t begin, end;  // elements of the flat space
  int64_t state;       // where the first element's m and v are
};

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
    auto weights = make_weights(parts);
    if (!weights) return forward(weights);
    weights_ = *weights;
    auto gradients = comm_.alloc("gradients", DType::f32, layout_.elements());
    if (!gradients) return forward(gradients);
    gradients_ = *gradients;

    plan_reductions();
    plan_norm();
    auto sums = comm_.alloc("gradient norms", DType::f64, layout_.tiles);
    if (!sums) return forward(sums);
    sums_ = *sums;
    Arena measured = Arena::measuring();
    take_state(measured);
    auto arena = Arena::make(device_, measured.used());
    if (!arena) return forward(arena);
    arena_ = std::move(*arena);
    take_state(arena_);
    return {};
  }

  void acquire(Stream&, int block) override {
    for (int b : buckets_of_block_[block]) finish_gather(buckets_[b]);
  }
  void release(Stream&, int) override {}
  View weight(int param) override { return view_of(weights_, specs_[param], layout_.of(param)); }

  void begin_step(Stream& stream) override {
    ops_.fill(stream, gradients_, 0.0);
    issued_ = 0;
    micro_ = 0;
    begun_ = 0;
  }

  void begin_micro(Stream& stream, bool last) override {
    micro_ = begun_++;
    last_micro_ = last;
    if (tree() && micro_ > 0) ops_.fill(stream, buffer(), 0.0);
    for (Reduction& r : buckets_) r.missing = r.plan.last - r.plan.first;
    for (size_t p = 0; p < specs_.size(); ++p) contributions_left_[p] = specs_[p].contributions;
  }

  View grad(int param) override { return view_of(buffer(), specs_[param], layout_.of(param)); }

  void ready(Stream& stream, int param) override {
    if (--contributions_left_[param] > 0) return;
    Reduction& r = buckets_[bucket_of_[param]];
    if (--r.missing > 0) return;
    if (tree()) join_branches(stream, r);
    if (!last_micro_) return;
    // In the layout's order whatever the order of readiness: every rank must issue alike.
    while (issued_ < buckets_.size() && buckets_[issued_].missing == 0) {
      reduce(stream, buckets_[issued_++]);
    }
  }

  void no_micro(Stream& stream) override {
    for (Reduction& r : buckets_) finish_gather(r);  // no pass acquires the blocks
    while (issued_ < buckets_.size()) reduce(stream, buckets_[issued_++]);
  }

  Result<StepStats> step(Stream& stream, const StepScalars& scalars) override {
    if (!status_) return tl::unexpected(status_.error());
    if (issued_ < buckets_.size()) {
      return fail("an optimizer step was asked for before every gradient was ready");
    }
    if (tree() && begun_ * comm_.size() != options_.micro_batches) {
      return fail("this rank had " + std::to_string(begun_) + " of " +
                  std::to_string(options_.micro_batches) + " micro-batches, on " +
                  std::to_string(comm_.size()) + " ranks: that is not its branch of the tree");
    }
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
    for (const Run& r : owned_) {
      pieces.push_back(piece(r, "weight", weights_.slice(r.begin, unpadded(r))));
      add_state_pieces(r, pieces);
    }
    return pieces;
  }

  std::vector<Piece> wanted() const override {
    std::vector<Piece> pieces = weight_pieces(weights_, specs_, layout_);
    for (const Run& r : updated_) add_state_pieces(r, pieces);
    return pieces;
  }

  Status spread(Stream& stream) override {
    if (auto s = gather_all(stream, weights_); !s || !replicated()) return s;
    for (View state : {m_, v_}) {
      // Only memory of the communicator travels: the gradients' is free now.
      ops_.copy(stream, state, gradients_);
      if (auto s = gather_all(stream, gradients_); !s) return s;
      ops_.copy(stream, gradients_, state);
    }
    return stream.record().wait(deadline());
  }

  uint64_t updates() const override { return updates_; }
  void set_updates(uint64_t n) override { updates_ = n; }

 private:
  // A bucket and where it is in the present step.
  struct Reduction {
    Bucket plan;
    size_t first_run = 0, last_run = 0;  // of updated_
    int64_t first_sum = 0;               // of the own part of sums_, of the first own tile
    int missing = 0;                     // parameters whose gradient is not complete
    Ticket summed = 0;
    std::optional<Ticket> copied;     // the sums, to all ranks
    std::optional<Ticket> gathering;  // the weights
  };

  // Gradients of micro-batches wait in buffers for the one that they are added to, as on a stack:
  // micro-batch i of this rank finds as many there as i has ones in binary, and, when it is done,
  // is joined with as many as i has ones at its end.
  bool tree() const { return options_.micro_batches > 0; }
  int waiting() const { return tree() ? std::popcount(static_cast<uint64_t>(micro_)) : 0; }
  View buffer() const { return buffers_[waiting()]; }
  void join_branches(Stream& stream, const Reduction& r) {
    const auto part = [&](View whole) { return whole.slice(r.plan.offset, r.plan.elements()); };
    int top = waiting();
    for (int n = std::countr_one(static_cast<uint64_t>(micro_)); n > 0; --n, --top) {
      const std::array<View, 2> both{part(buffers_[top - 1]), part(buffers_[top])};
      ops_.sum(stream, both[0], both);
    }
  }

  bool replicated() const { return options_.policy == ShardPolicy::none; }
  Deadline deadline() const { return Deadline::in(options_.timeout); }

  void plan_reductions() {
    int blocks = 0;
    for (const ParamSpec& s : specs_) blocks = std::max(blocks, s.block + 1);
    buckets_of_block_.resize(blocks);
    bucket_of_.resize(specs_.size());
    contributions_left_.resize(specs_.size());

    int64_t own = 0;  // elements
    for (Bucket& plan : plan_buckets(layout_, options_.bucket_bytes, comm_.size())) {
      const int b = static_cast<int>(buckets_.size());
      Reduction r;
      r.first_sum = own / Layout::tile;
      r.first_run = updated_.size();
      const int64_t begin = plan.offset + plan.owners.offset(comm_.rank());
      const int64_t end = begin + plan.owners.count(comm_.rank());
      for (int i = plan.first; i < plan.last; ++i) {
        const Layout::Entry& e = layout_.entries[i];
        bucket_of_[e.param] = b;
        auto& of_block = buckets_of_block_[specs_[e.param].block];
        if (of_block.empty() || of_block.back() != b) of_block.push_back(b);

        const int64_t entry_end = e.offset + e.tiles * Layout::tile;
        Run run{e.param, std::max(begin, e.offset), std::min(end, entry_end), 0};
        run.state = replicated() ? run.begin : own;
        if (run.begin < run.end) {
          owned_.push_back(run);
          own += run.end - run.begin;
        }
        if (replicated())
          updated_.push_back({e.param, e.offset, entry_end, e.offset});
        else if (run.begin < run.end)
          updated_.push_back(run);
      }
      r.last_run = updated_.size();
      r.plan = std::move(plan);
      buckets_.push_back(std::move(r));
    }
    state_elements_ = replicated() ? layout_.elements() : own;
  }

  // Where the sums of squares of each rank's tiles are among those of all.
  void plan_norm() {
    sums_owners_.begin.assign(1, 0);
    for (int rank = 0; rank < comm_.size(); ++rank) {
      int64_t tiles = sums_owners_.begin.back();
      for (const Reduction& r : buckets_) tiles += r.plan.owners.count(rank) / Layout::tile;
      sums_owners_.begin.push_back(tiles);
    }
    host_sums_.resize(layout_.tiles);
  }

  void take_state(Arena& arena) {
    m_ = arena.take("optimizer state", DType::f32, {state_elements_});
    v_ = arena.take("optimizer state", DType::f32, {state_elements_});
    buffers_.assign(1, gradients_);
    for (int i = 1; i < gradient_buffers(options_.micro_batches, comm_.size()); ++i)
      buffers_.push_back(arena.take("gradients", DType::f32, {layout_.elements()}));
    scalars_ = arena.take("step scalars", DType::f64, {update_scalars});
  }

  // Sums a bucket over the ranks: on the owners, or on all ranks where all of them update.
  void reduce(Stream& stream, Reduction& r) {
    const View bucket = gradients_.slice(r.plan.offset, r.plan.elements());
    r.summed = comm_.reduce_scatter(bucket, r.plan.owners, DType::f32, stream.record());
    if (replicated()) r.copied = comm_.all_gather(bucket, r.plan.owners, Event());
  }

  // Of the mean gradient, over all ranks and parameters. Each tile's sum of squares is taken on
  // its owner, and all are added up in the tiles' order: the bits depend on no rank.
  Result<double> gradient_norm(Stream& stream, double tokens) {
    const Traced traced(options_.trace, "optimizer", "reduce");
    const int rank = comm_.rank();
    for (Reduction& r : buckets_) {
      if (auto ok = comm_.wait(r.summed, deadline()); !ok) return forward(ok);
      if (r.copied) {
        if (auto ok = comm_.wait(*r.copied, deadline()); !ok) return forward(ok);
      }
      const int64_t count = r.plan.owners.count(rank);
      if (count == 0) continue;
      ops_.sumsq(stream, gradients_.slice(r.plan.offset + r.plan.owners.offset(rank), count),
                 Layout::tile,
                 sums_.slice(sums_owners_.offset(rank) + r.first_sum, count / Layout::tile));
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
    for (const Reduction& r : buckets_) {
      for (size_t rank = 0; rank < next.size(); ++rank) {
        const int64_t tiles = r.plan.owners.count(static_cast<int>(rank)) / Layout::tile;
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
    device_.upload(stream, scalars_, View(host_scalars_.data(), DType::f64, {update_scalars}));

    for (Reduction& r : buckets_) {
      for (size_t i = r.first_run; i < r.last_run; ++i) update_run(stream, updated_[i]);
      if (replicated()) continue;
      r.gathering = comm_.all_gather(weights_.slice(r.plan.offset, r.plan.elements()),
                                     r.plan.owners, stream.record());
    }
  }

  void update_run(Stream& stream, const Run& run) {
    Rule rule = options_.rule;
    if (specs_[run.param].group != Group::decay) rule.weight_decay = 0.0f;
    const int64_t n = run.end - run.begin;
    ops_.update(stream, rule,
                {weights_.slice(run.begin, n), gradients_.slice(run.begin, n),
                 m_.slice(run.state, n), v_.slice(run.state, n)},
                scalars_);
  }

  // Every part of the flat space becomes its owner's.
  Status gather_all(Stream& stream, View flat) {
    std::vector<Ticket> tickets;
    for (const Reduction& r : buckets_)
      tickets.push_back(comm_.all_gather(flat.slice(r.plan.offset, r.plan.elements()),
                                         r.plan.owners, stream.record()));
    Status done;
    for (Ticket t : tickets)
      if (auto s = comm_.wait(t, deadline()); !s && done) done = s;
    return done;
  }

  // The weights of a bucket are gathered while the next forward pass begins. What goes wrong there
  // is reported by the next step.
  void finish_gather(Reduction& r) {
    if (!r.gathering) return;
    auto ok = comm_.wait(*r.gathering, deadline());
    if (!ok && status_) status_ = ok;
    r.gathering.reset();
  }

  // The rest of a parameter's last tile is in no checkpoint.
  int64_t unpadded(const Run& r) const {
    const Layout::Entry& e = layout_.of(r.param);
    return std::min(r.end, e.offset + e.size) - r.begin;
  }
  Piece piece(const Run& r, const char* slot, View mem) const {
    return {specs_[r.param].name, slot, r.begin - layout_.of(r.param).offset, unpadded(r), mem};
  }
  void add_state_pieces(const Run& r, std::vector<Piece>& pieces) const {
    pieces.push_back(piece(r, "m", m_.slice(r.state, unpadded(r))));
    pieces.push_back(piece(r, "v", v_.slice(r.state, unpadded(r))));
  }

  Device& device_;
  Ops& ops_;
  Comm& comm_;
  const std::vector<ParamSpec> specs_;
  const Layout layout_;
  const ShardOptions options_;

  std::vector<Run> owned_;    // what this rank saves, by rising offset
  std::vector<Run> updated_;  // what it updates: the same, or everything
  std::vector<Reduction> buckets_;
  std::vector<int> bucket_of_;                      // by parameter
  std::vector<std::vector<int>> buckets_of_block_;  // by block
  int64_t state_elements_ = 0;

  View weights_, gradients_;  // f32 [layout_.elements()], memory of comm_
  View sums_;                 // f64 [layout_.tiles], memory of comm_: squares of gradients
  Owners sums_owners_;        // of sums_, which has the tiles of each rank together
  Arena arena_;
  View m_, v_;                                            // f32 [state_elements_]
  std::vector<View> buffers_;                             // gradients_, and more as large
  View scalars_;                                          // f64 [update_scalars]
  std::vector<double> host_sums_;                         // a copy of sums_
  std::array<double, update_scalars> host_scalars_ = {};  // what scalars_ is copied from

  bool last_micro_ = false;
  int64_t begun_ = 0, micro_ = 0;        // micro-batches of this step; the present one
  std::vector<int> contributions_left_;  // by parameter, in this micro-batch
  size_t issued_ = 0;                    // buckets whose reduction was issued in this step
  uint64_t updates_ = 0;
  Status status_;  // the first error of a gather
};

}  // namespace

int gradient_buffers(int64_t micro_batches, int ranks) {
  return static_cast<int>(
      std::bit_width(static_cast<uint64_t>(std::max<int64_t>(micro_batches / ranks, 1))));
}

Result<std::unique_ptr<Shard>> make_shard(const ShardParts& parts, const ShardOptions& options) {
  auto shard = std::make_unique<TrainingShard>(parts, options);
  if (auto ok = shard->prepare(parts); !ok) return forward(ok);
  return shard;
}

}  // namespace trainlaunch
