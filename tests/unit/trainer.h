// What one rank trains with, put together by hand for the tests of lib/optim.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpt_reference.h"
#include "ops/convert.h"
#include "optim/optim.h"

namespace trainlaunch::test {

inline std::vector<double> values(View v) {
  std::vector<double> x(static_cast<size_t>(v.size()));
  convert(v, View(x.data(), DType::f64, {v.size()}), 0, v.size());
  return x;
}

inline Result<std::unique_ptr<Comm>> make_test_comm(Control& control,
                                                    const std::vector<int>& sockets,
                                                    SumOrder order = SumOrder::nodes) {
  CommOptions options;
  options.order = order;
  options.timeout = Seconds(30);
  options.interface = "lo";
  return make_comm(control, sockets, options);
}

// Everything a rank trains with.
struct Trainer {
  explicit Trainer(std::unique_ptr<Comm> communicator, const ShardOptions& options,
                   const GptConfig& config = reference_config(), int64_t sequences = 3,
                   int threads = 1, SameBits bits = SameBits::same_threads,
                   DType compute = DType::f32)
      : comm(std::move(communicator)),
        ops(make_cpu_ops(threads, bits, compute)),
        model_context(config.context) {
    auto made = make_gpt(config);
    REQUIRE(made);
    model = std::move(*made);
    stream = std::move(*device->stream());
    layout = Layout::plan(model->params());
    const BatchShape shape{sequences, config.context};
    Arena measure = Arena::measuring();
    take(measure, shape);
    auto real = Arena::make(*device, measure.used());
    REQUIRE(real);
    arena = std::move(*real);
    take(arena, shape);
    auto s = make_shard({*device, *ops, *comm, model->params(), layout, 7}, options);
    REQUIRE_MESSAGE(s, (s ? "" : s.error().what));
    shard = std::move(*s);
  }

  void take(Arena& a, const BatchShape& shape) {
    model->reserve(a, *ops, {shape});
    sums = a.take("loss and count", DType::f64, {2});
    ops->use_scratch(a.take("scratch", DType::u8,
                            {static_cast<int64_t>(ops->scratch_bytes(model->limits(shape)))}));
  }

  // The weights that PyTorch's reference starts from. Collective.
  void use_reference_weights() {
    const auto params = model->params();
    std::map<std::string, int> numbers;
    for (int p = 0; p < static_cast<int>(params.size()); ++p) numbers[params[p].name] = p;
    for (const Piece& piece : shard->wanted()) {
      if (piece.slot != "weight") continue;
      const std::vector<double> w = reference_weight(params, numbers.at(piece.tensor));
      std::copy_n(w.begin() + piece.offset, piece.length, piece.mem.as<float>());
    }
    spread();
  }
  void spread() {
    auto s = shard->spread(*stream);
    REQUIRE_MESSAGE(s, (s ? "" : s.error().what));
  }

  void begin_micro(bool last) { shard->begin_micro(*stream, last); }
  void micro(const Batch& batch, bool last) {
    begin_micro(last);
    pass(batch);
  }
  void pass(const Batch& batch) {
    Ctx ctx{*ops, *stream, sums.slice(0, 1), sums.slice(1, 1), nullptr};
    model->forward(ctx, batch, *shard);
    model->backward(ctx, batch, *shard);
  }
  // A step on these micro-batches; none: this rank has no part in the batch.
  StepStats step(const std::vector<Batch>& batches, const StepScalars& scalars) {
    ops->fill(*stream, sums, 0);
    shard->begin_step(*stream);
    for (size_t i = 0; i < batches.size(); ++i) micro(batches[i], i + 1 == batches.size());
    if (batches.empty()) shard->no_micro(*stream);
    auto stats = shard->step(*stream, scalars);
    REQUIRE_MESSAGE(stats, (stats ? "" : stats.error().what));
    return *stats;
  }
  // The same, with blank micro-batches so that there are `passes`.
  StepStats step_with(std::vector<Batch> batches, size_t passes, const StepScalars& scalars) {
    HostBatch blank = noise_batch(1, model_context, 2);
    blank.targets.assign(blank.targets.size(), -1);
    while (batches.size() < passes) batches.push_back(blank.all());
    return step(batches, scalars);
  }
  double loss() const { return sums.as<double>()[0]; }

  std::vector<double> weight(int param) {
    const int block = model->params()[param].block;
    shard->acquire(*stream, block);
    std::vector<double> w = values(shard->weight(param));
    shard->release(*stream, block);
    return w;
  }
  // Collective where weights are sharded.
  std::vector<double> all_weights() {
    std::vector<double> all;
    for (int p = 0; p < static_cast<int>(model->params().size()); ++p) {
      const auto w = weight(p);
      all.insert(all.end(), w.begin(), w.end());
    }
    return all;
  }

  std::unique_ptr<Device> device = make_host_device();
  std::unique_ptr<Comm> comm;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Model> model;
  std::unique_ptr<Stream> stream;
  Layout layout;
  Arena arena;
  View sums;
  std::unique_ptr<Shard> shard;
  int64_t model_context;
};

inline ShardOptions reference_options(ShardPolicy policy) {
  const auto& t = reference()["training"];
  ShardOptions o;
  o.policy = policy;
  o.bucket_bytes = 64 << 10;  // several buckets even in a small model
  o.rule = {t["beta1"], t["beta2"], t["eps"], t["weight_decay"]};
  return o;
}
inline StepScalars reference_scalars() {
  const auto& t = reference()["training"];
  return {t["lr"], t["clip"], reference()["count"]};
}

// Saved state: tensor, slot and element to value.
using Saved = std::map<std::string, std::map<int64_t, float>>;

inline void save(const Shard& shard, Saved& saved) {
  for (const Piece& p : shard.owned()) {
    auto& slot = saved[p.tensor + "/" + p.slot];
    const size_t before = slot.size();
    for (int64_t i = 0; i < p.length; ++i) slot.emplace(p.offset + i, p.mem.as<float>()[i]);
    CHECK_MESSAGE(slot.size() == before + static_cast<size_t>(p.length), p.tensor);
  }
}
inline void load(const Trainer& t, const Saved& saved, uint64_t updates) {
  for (const Piece& p : t.shard->wanted()) {
    const auto& slot = saved.at(p.tensor + "/" + p.slot);
    for (int64_t i = 0; i < p.length; ++i) p.mem.as<float>()[i] = slot.at(p.offset + i);
  }
  t.shard->set_updates(updates);
  auto s = t.shard->spread(*t.stream);
  REQUIRE_MESSAGE(s, (s ? "" : s.error().what));
}

inline constexpr ShardPolicy policies[] = {ShardPolicy::none, ShardPolicy::optimizer,
                                           ShardPolicy::gradients, ShardPolicy::full};

}  // namespace trainlaunch::test
