#include "train/feeder.h"

#include <algorithm>

namespace trainlaunch {

Feeder::Feeder(const RunConfig& config, Text& text, Engine& engine)
    : config_(config),
      text_(text),
      engine_(engine),
      evaluated_(
          std::min(text.validation_samples(),
                   static_cast<uint64_t>(config.train.eval_batches * config.train.global_batch))) {
  // What a step needs is allocated here.
  const auto rows = static_cast<size_t>(engine.tokens.rows());
  samples_.reserve(rows);
  tokens_.reserve(rows * static_cast<size_t>(config.model.context));
  targets_.reserve(tokens_.capacity());
}

Result<Batch> Feeder::training(const Micro& micro) { return load(micro, /*training=*/true); }
Result<Batch> Feeder::validation(const Micro& micro) { return load(micro, /*training=*/false); }

Result<Batch> Feeder::blank() {
  if (auto s = begin(1); !s) return forward(s);
  return upload(1);
}

Status Feeder::begin(int64_t sequences) {
  // The host side of the copy before this one is free when that copy is done.
  if (auto s = uploaded_.wait(Deadline::in(Seconds(config_.train.deadline))); !s) return s;
  tokens_.assign(static_cast<size_t>(sequences * config_.model.context), 0);
  targets_.assign(tokens_.size(), -1);
  samples_.clear();
  return {};
}

Result<Batch> Feeder::load(const Micro& micro, bool training) {
  if (auto s = begin(micro.count); !s) return forward(s);
  const int64_t context = config_.model.context;
  for (int64_t i = 0; i < micro.count; ++i) {
    const uint64_t g = micro.first + static_cast<uint64_t>(i);
    int32_t *tokens = tokens_.data() + i * context, *targets = targets_.data() + i * context;
    samples_.push_back(training ? order(config_.train.seed, g, text_.training_samples())
                                : g * text_.validation_samples() / evaluated_);
    auto read = training ? text_.training(samples_.back(), tokens, targets)
                         : text_.validation(samples_.back(), tokens, targets);
    if (!read) return forward(read);
  }
  return upload(micro.count);
}

Batch Feeder::upload(int64_t sequences) {
  const Batch batch = engine_.batch(sequences);
  auto host = [&](std::vector<int32_t>& v) {
    return View(v.data(), DType::i32, {sequences, config_.model.context});
  };
  engine_.device->upload(*engine_.stream, batch.tokens, host(tokens_));
  engine_.device->upload(*engine_.stream, batch.targets, host(targets_));
  uploaded_ = engine_.stream->record();
  return batch;
}

}  // namespace trainlaunch
