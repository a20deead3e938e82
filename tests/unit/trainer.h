// What one rank trains with, put together by hand for the tests of lib/optim.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpt_reference.h"
#include "optim/optim.h"

namespace trainlaunch::test {

inline std::vector<double> values(View v) {
  const float* p = v.as<float>();
  return std::vector<double>(p, p + v.size());
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
                   int threads = 1, SameBits bits = SameBits::same_threads)
      : comm(std::move(communicator)), ops(make_cpu_ops(threads, bits)) {
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

  // The weights that PyTorch's reference starts from.
  void use_reference_weights() {
    const auto params = model->params();
    for (int p = 0; p < static_cast<int>(params.size()); ++p) {
      const std::vector<double> w = reference_weight(params, p);
      std::copy(w.begin(), w.end(), shard->weight(p).as<float>());
    }
  }

  void micro(const Batch& batch, bool last) {
    Ctx ctx{*ops, *stream, sums.slice(0, 1), sums.slice(1, 1), nullptr};
    shard->begin_micro(*stream, last);
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
    for (int b = 0; b < static_cast<int>(model->params().size()); ++b) {
      const int block = model->params()[b].block;
      shard->acquire(*stream, block);
      shard->release(*stream, block);
    }
    return *stats;
  }
  double loss() const { return sums.as<double>()[0]; }

  std::vector<double> all_weights() const {
    std::vector<double> all;
    for (int p = 0; p < static_cast<int>(model->params().size()); ++p) {
      const auto w = values(shard->weight(p));
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
inline void load(const Shard& shard, const Saved& saved) {
  for (const Piece& p : shard.wanted()) {
    const auto& slot = saved.at(p.tensor + "/" + p.slot);
    for (int64_t i = 0; i < p.length; ++i) p.mem.as<float>()[i] = slot.at(p.offset + i);
  }
}

}  // namespace trainlaunch::test
