#include "optim/weights.h"

#include <algorithm>

#include "ops/convert.h"

namespace trainlaunch {

namespace {

// What passes through the host does so in parts of this many elements: no tensor is ever there as a
// whole, besides where it belongs.
constexpr int64_t host_part = int64_t{1} << 18;

class WholeWeights final : public Weights {
 public:
  WholeWeights(const ShardParts& parts, const WeightsPlan& plan, View memory)
      : device_(parts.device),
        ops_(parts.ops),
        comm_(parts.comm),
        plan_(plan),
        weights_(memory),
        gathering_(plan.buckets.size()) {
    for (const ParamSpec& s : plan_.specs)
      buckets_of_block_.resize(std::max<size_t>(buckets_of_block_.size(), s.block + 1));
    for (size_t b = 0; b < plan_.buckets.size(); ++b) {
      for (int i = plan_.buckets[b].first; i < plan_.buckets[b].last; ++i) {
        auto& list = buckets_of_block_[plan_.specs[plan_.layout.entries[i].param].block];
        if (list.empty() || list.back() != b) list.push_back(b);
      }
    }
  }

  Status prepare() {
    const int64_t n = weight_copies(plan_.options.policy, ops_.dtype(), plan_.own.elements).masters;
    if (n == 0) return {};
    auto arena = Arena::make(device_, static_cast<size_t>(n) * sizeof(float));
    if (!arena) return forward(arena);
    arena_ = std::move(*arena);
    masters_ = arena_.take("master weights", DType::f32, {n});
    return {};
  }

  void acquire(Stream&, int block) override {
    for (const size_t b : buckets_of_block_[block]) finish_gather(b);
  }
  void release(int) override {}
  View weight(int param) const override {
    return view_of(weights_, plan_.specs[param], plan_.layout.of(param).offset);
  }
  void no_pass() override {
    for (size_t b = 0; b < gathering_.size(); ++b) finish_gather(b);
  }

  View master(const Run& run) const override {
    return masters_ ? masters_.slice(run.kept, run.size()) : weights_.slice(run.begin, run.size());
  }
  View copy(const Run& run) const override {
    return masters_ ? weights_.slice(run.begin, run.size()) : View();
  }
  // The weights of a bucket are gathered while the next forward pass begins.
  void updated(Stream& stream, size_t b) override {
    if (plan_.options.policy == ShardPolicy::none) return;
    const Bucket& bucket = plan_.buckets[b];
    gathering_[b] = comm_.all_gather(weights_.slice(bucket.offset, bucket.elements()),
                                     bucket.owners, stream.record());
  }
  void all_updated(Stream&) override {}

  Status refresh(Stream& stream, const Rule& rule, uint64_t update) override {
    no_pass();
    for (size_t b = 0; b < plan_.buckets.size(); ++b) {
      for (const Run& run : plan_.updates.of(b)) {
        if (!masters_) break;
        auto s = round_copy(device_, ops_, stream, rule, update, master(run), copy(run), run.begin);
        if (!s) return s;
      }
      updated(stream, b);
    }
    no_pass();
    return status_;
  }

 private:
  void finish_gather(size_t b) {
    if (!gathering_[b]) return;
    auto ok = comm_.wait(*gathering_[b], Deadline::in(plan_.options.timeout));
    if (!ok && status_) status_ = ok;
    gathering_[b].reset();
  }

  Device& device_;
  Ops& ops_;
  Comm& comm_;
  const WeightsPlan plan_;
  const View weights_;                                 // [layout.elements()]
  std::vector<std::optional<Ticket>> gathering_;       // by bucket
  std::vector<std::vector<size_t>> buckets_of_block_;  // by block
  Arena arena_;
  View masters_;  // f32 [own.elements], or null
};

}  // namespace

int64_t weight_elements(ShardPolicy policy, const Layout& layout,
                        std::span<const ParamSpec> specs) {
  if (policy != ShardPolicy::full) return layout.elements();
  const Rotation rotation(specs);
  std::vector<int64_t> sizes(static_cast<size_t>(rotation.blocks()), 0);
  for (const Layout::Entry& e : layout.entries) sizes[specs[e.param].block] += e.whole();
  int64_t staying = 0, largest = 0, turns = 0;
  for (int b = 0; b < rotation.blocks(); ++b) {
    if (rotation.stays(b)) {
      staying += sizes[b];
    } else {
      largest = std::max(largest, sizes[b]);
      ++turns;
    }
  }
  return staying + std::min<int64_t>(turns, Rotation::buffers) * largest;
}

WeightCopies weight_copies(ShardPolicy policy, DType compute, int64_t kept) {
  const bool full = policy == ShardPolicy::full, apart = compute != DType::f32;
  return {full || apart ? kept : 0, full && apart ? kept : 0};
}

Result<std::unique_ptr<Weights>> make_weights(const ShardParts& parts, const WeightsPlan& plan,
                                              View memory) {
  if (plan.options.policy == ShardPolicy::full) return make_block_weights(parts, plan, memory);
  auto weights = std::make_unique<WholeWeights>(parts, plan, memory);
  if (auto s = weights->prepare(); !s) return forward(s);
  return weights;
}

Status round_copy(Device& device, Ops& ops, Stream& stream, const Rule& rule, uint64_t update,
                  View from, View to, int64_t element) {
  if (!rule.stochastic || to.t != DType::bf16) {
    ops.copy(stream, from, to);
    return {};
  }
  std::vector<float> wide(static_cast<size_t>(std::min(from.size(), host_part)));
  std::vector<Bf16> rounded(wide.size());
  for (int64_t at = 0; at < from.size(); at += host_part) {
    const int64_t n = std::min(from.size() - at, host_part);
    device.download(stream, View(wide.data(), DType::f32, {n}), from.slice(at, n));
    if (auto s = stream.record().wait(Deadline::never()); !s) return s;
    round_by_chance(wide.data(), rounded.data(), n, rule.seed, static_cast<uint32_t>(update),
                    static_cast<uint64_t>(element + at));
    device.upload(stream, to.slice(at, n), View(rounded.data(), DType::bf16, {n}));
    if (auto s = stream.record().wait(Deadline::never()); !s) return s;
  }
  return {};
}

Status initialise_run(Device& device, Stream& stream, const ParamSpec& spec,
                      const Layout::Entry& entry, uint64_t seed, const Run& run, View master) {
  std::vector<float> host(static_cast<size_t>(std::min(run.size(), host_part)));
  for (int64_t at = 0; at < run.size(); at += host_part) {
    const int64_t offset = run.begin + at - entry.offset, n = std::min(run.size() - at, host_part);
    const int64_t filled = std::clamp<int64_t>(entry.size - offset, 0, n);
    initialise(spec, seed, offset, View(host.data(), DType::f32, {filled}));
    std::fill(host.begin() + filled, host.begin() + n, 0.0f);
    device.upload(stream, master.slice(at, n), View(host.data(), DType::f32, {n}));
    if (auto s = stream.record().wait(Deadline::never()); !s) return s;
  }
  return {};
}

View view_of(View flat, const ParamSpec& spec, int64_t offset) {
  View v = flat.slice(offset, spec.size());
  v.n = static_cast<int>(spec.shape.size());
  for (int i = 0; i < v.n; ++i) v.shape[i] = spec.shape[i];
  return v;
}

}  // namespace trainlaunch
