#include "optim/weights.h"

namespace trainlaunch {

namespace {

class FrozenShard final : public Shard {
 public:
  FrozenShard(const ShardParts& parts, View weights)
      : specs_(parts.specs.begin(), parts.specs.end()), layout_(parts.layout), weights_(weights) {}

  void acquire(Stream&, int) override {}
  void release(Stream&, int) override {}
  View weight(int param) override { return view_of(weights_, specs_[param], layout_.of(param)); }

  void begin_step(Stream&) override {}
  void begin_micro(Stream&, bool) override {}
  View grad(int) override { return View(); }
  void ready(Stream&, int) override {}
  void no_micro(Stream&) override {}
  Result<StepStats> step(Stream&, const StepScalars&) override {
    return fail("these weights are for evaluation only and cannot be trained");
  }

  std::vector<Piece> owned() const override { return {}; }
  std::vector<Piece> wanted() const override { return weight_pieces(weights_, specs_, layout_); }
  Status spread(Stream&) override { return {}; }
  uint64_t updates() const override { return updates_; }
  void set_updates(uint64_t n) override { updates_ = n; }

 private:
  const std::vector<ParamSpec> specs_;
  const Layout layout_;
  const View weights_;
  uint64_t updates_ = 0;
};

}  // namespace

Result<std::unique_ptr<Shard>> make_frozen_shard(const ShardParts& parts) {
  auto weights = make_weights(parts);
  if (!weights) return forward(weights);
  return std::make_unique<FrozenShard>(parts, *weights);
}

}  // namespace trainlaunch
