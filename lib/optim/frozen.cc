#include "optim/weights.h"

namespace trainlaunch {

namespace {

class FrozenShard final : public Shard {
 public:
  explicit FrozenShard(const ShardParts& parts)
      : device_(parts.device),
        ops_(parts.ops),
        specs_(parts.specs.begin(), parts.specs.end()),
        layout_(parts.layout) {}

  Status prepare(uint64_t seed) {
    if (ops_.wide() != DType::f32)
      return fail(std::string("the ") + ops_.name() + " operations compute in " +
                  name_of(ops_.dtype()) + "; weights are f32 or bf16");
    const int64_t n = layout_.elements();
    const auto take = [&](Arena& arena) {
      masters_ = arena.take("weights", DType::f32, {n});
      weights_ = ops_.dtype() == DType::f32 ? masters_ : arena.take("weights", ops_.dtype(), {n});
    };
    auto arena = Arena::fitting(device_, take);
    if (!arena) return forward(arena);
    arena_ = std::move(*arena);
    auto stream = device_.stream();
    if (!stream) return forward(stream);
    for (const Layout::Entry& e : layout_.entries) {
      const Run run{e.param, e.offset, e.offset + e.whole(), e.offset};
      auto s = initialise_run(device_, **stream, specs_[e.param], e, seed, run,
                              masters_.slice(run.begin, run.size()));
      if (!s) return s;
    }
    return spread(**stream);
  }

  void acquire(Stream&, int) override {}
  void release(Stream&, int) override {}
  View weight(int param) override {
    return view_of(weights_, specs_[param], layout_.of(param).offset);
  }

  void begin_step(Stream&) override {}
  void begin_micro(Stream&, bool) override {}
  View grad(int) override { return {}; }
  GradientSum grad_sum(int) override { return {}; }
  void ready(Stream&, int) override {}
  void no_micro(Stream&) override {}
  Result<StepStats> step(Stream&, const StepScalars&) override {
    return fail("these weights are for evaluation only and cannot be trained");
  }

  std::vector<Piece> owned() const override { return {}; }
  std::vector<Piece> wanted() const override {
    std::vector<Piece> pieces;
    for (const Layout::Entry& e : layout_.entries)
      pieces.push_back(
          {specs_[e.param].name, "weight", 0, e.size, masters_.slice(e.offset, e.size)});
    return pieces;
  }
  Status spread(Stream& stream) override {
    if (weights_.p == masters_.p) return {};
    ops_.copy(stream, masters_, weights_);
    return stream.record().wait(Deadline::never());
  }
  uint64_t updates() const override { return updates_; }
  void set_updates(uint64_t n) override { updates_ = n; }
  int64_t bucket_bytes() const override { return 0; }

 private:
  Device& device_;
  Ops& ops_;
  const std::vector<ParamSpec> specs_;
  const Layout layout_;
  Arena arena_;
  View masters_;  // f32 [layout_.elements()]
  View weights_;  // the same in the ops' type; masters_ if that is f32
  uint64_t updates_ = 0;
};

}  // namespace

Result<std::unique_ptr<Shard>> make_frozen_shard(const ShardParts& parts) {
  auto shard = std::make_unique<FrozenShard>(parts);
  if (auto s = shard->prepare(parts.seed); !s) return forward(s);
  return shard;
}

}  // namespace trainlaunch
