// What training on a device needs, put together from its parts, for tests and measurements.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "comm/device_comm.h"
#include "model/model.h"
#include "ops/ops.h"
#include "optim/optim.h"

namespace trainlaunch::testing {

struct TrainingDevice {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
};

inline DeviceMath math_by(Ops& ops) {
  DeviceMath math;
  math.sum = [&ops](Stream& s, View dst, std::span<const View> parts) { ops.sum(s, dst, parts); };
  math.copy = [&ops](Stream& s, View from, View to) { ops.copy(s, from, to); };
  math.clear = [&ops](Stream& s, View v) { ops.fill(s, v, 0); };
  return math;
}

// One rank, with one micro-batch a step. Errors end up in `status`.
class TrainingRank {
 public:
  TrainingRank(TrainingDevice on, std::unique_ptr<Comm> comm, const GptConfig& config,
               int64_t sequences, const ShardOptions& options)
      : on_(std::move(on)), comm_(std::move(comm)) {
    status = prepare(config, sequences, options);
  }

  Status status;
  const Model& model() const { return *model_; }
  size_t arena_bytes() const { return arena_.used(); }

  // Host i32 [sequences * context] each.
  Status load(std::span<const int32_t> tokens, std::span<const int32_t> targets) {
    const auto host = [](std::span<const int32_t> x) {
      return View(const_cast<int32_t*>(x.data()), DType::i32, {static_cast<int64_t>(x.size())});
    };
    on_.device->upload(*stream_, batch_.tokens, host(tokens));
    on_.device->upload(*stream_, batch_.targets, host(targets));
    return stream_->record().wait(Deadline::in(patience));
  }

  // The mean loss over all ranks before the step, in which each has as many targets.
  Result<double> step(double lr, double targets_of_all) {
    Ops& ops = *on_.ops;
    ops.fill(*stream_, totals_, 0);
    shard_->begin_step(*stream_);
    shard_->begin_micro(*stream_, /*last=*/true);
    Ctx ctx{ops, *stream_, totals_.slice(0, 1), totals_.slice(1, 1)};
    model_->forward(ctx, batch_, *shard_);
    model_->backward(ctx, batch_, *shard_);
    StepScalars scalars;
    scalars.lr = lr;
    scalars.clip = 1.0;
    scalars.tokens = targets_of_all;
    auto stats = shard_->step(*stream_, scalars);
    if (!stats) return forward(stats);
    double sums[2] = {};
    on_.device->download(*stream_, View(sums, DType::f64, {2}), totals_);
    if (auto ok = stream_->record().wait(Deadline::in(patience)); !ok) return forward(ok);
    if (auto ok = comm_->all_sum(sums, Deadline::in(patience)); !ok) return forward(ok);
    return sums[0] / sums[1];
  }

 private:
  static constexpr Seconds patience{60};

  Status prepare(const GptConfig& config, int64_t sequences, const ShardOptions& options) {
    auto model = make_gpt(config);
    if (!model) return forward(model);
    model_ = std::move(*model);
    layout_ = Layout::plan(model_->params());
    auto stream = on_.device->stream();
    if (!stream) return forward(stream);
    stream_ = std::move(*stream);
    const BatchShape shape{sequences, config.context};
    const auto take = [&](Arena& arena) {
      model_->reserve(arena, *on_.ops, {shape});
      batch_.tokens = arena.take("batch", DType::i32, {sequences, config.context});
      batch_.targets = arena.take("batch", DType::i32, {sequences, config.context});
      totals_ = arena.take("totals", DType::f64, {2});
      const size_t scratch = on_.ops->scratch_bytes(model_->limits(shape));
      return arena.take("scratch", DType::u8, {static_cast<int64_t>(scratch)});
    };
    Arena measured = Arena::measuring();
    take(measured);
    auto arena = Arena::make(*on_.device, measured.used());
    if (!arena) return forward(arena);
    arena_ = std::move(*arena);
    on_.ops->use_scratch(take(arena_));
    auto shard = make_shard({*on_.device, *on_.ops, *comm_, model_->params(), layout_, 7}, options);
    if (!shard) return forward(shard);
    shard_ = std::move(*shard);
    return {};
  }

  TrainingDevice on_;
  std::unique_ptr<Comm> comm_;
  std::unique_ptr<Model> model_;
  Layout layout_;
  std::unique_ptr<Stream> stream_;
  Arena arena_ = Arena::measuring();
  Batch batch_;
  View totals_;
  std::unique_ptr<Shard> shard_;
};

}  // namespace trainlaunch::testing
