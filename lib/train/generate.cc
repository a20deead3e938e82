#include <algorithm>
#include <cmath>
#include <vector>

#include "base/printable.h"
#include "ckpt/ckpt.h"
#include "data/data.h"
#include "train/engine.h"
#include "train/sample.h"
#include "train/settings.h"
#include "train/train.h"
#include "train/words.h"

namespace trainlaunch {

namespace {

constexpr Seconds patience{600};  // for one token

// A text that grows, of which the model sees the end.
class Reading {
 public:
  explicit Reading(Engine& engine) : e_(engine), context_(engine.tokens.cols()) {}

  // The logits after the last token of `text`, which is what it was and more. Where it no longer
  // fits into the context, the older half is let go and the rest read anew.
  Status read(const std::vector<int32_t>& text, std::vector<float>& logits) {
    const auto size = static_cast<int64_t>(text.size());
    if (size - begin_ > context_) {
      const int64_t kept = read_ > 0 ? std::max<int64_t>(context_ / 2, 1) : context_;
      begin_ = size - kept;
      read_ = 0;
    }
    std::vector<int32_t> fresh(text.begin() + begin_ + read_, text.end());
    const auto count = static_cast<int64_t>(fresh.size());
    const View tokens = e_.tokens.slice(0, count).reshape({1, count});
    e_.device->upload(*e_.stream, tokens, View(fresh.data(), DType::i32, {1, count}));
    Ctx ctx = e_.context();
    e_.model->extend(ctx, tokens, read_, e_.computed_logits, *e_.shard);
    e_.ops->copy(*e_.stream, e_.computed_logits, e_.logits);
    e_.device->download(*e_.stream, View(logits.data(), DType::f32, {Text::vocab}), e_.logits);
    read_ += count;
    return e_.stream->record().wait(Deadline::in(patience));
  }

 private:
  Engine& e_;
  const int64_t context_;
  int64_t begin_ = 0, read_ = 0;  // where the model's view begins; how much of it has been read
};

Status generate(Engine& engine, const GenerateOptions& options, const TextSink& out) {
  Printable printable;
  std::vector<int32_t> text;
  for (const char c : options.prompt) {
    text.push_back(static_cast<uint8_t>(c));
    out(printable.put(static_cast<uint8_t>(c)));
  }
  if (text.empty()) text.push_back('\n');  // a model continues something
  Reading reading(engine);
  std::vector<float> logits(Text::vocab);
  for (int64_t i = 0; i < options.tokens; ++i) {
    if (auto s = reading.read(text, logits); !s) return s;
    if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }))
      return fail("after " + plural(text.size(), "byte") +
                  " of text the model's output is not finite: its weights are not, or too "
                  "large; an older checkpoint may be good (--step)");
    text.push_back(choose(logits, options, static_cast<uint64_t>(i)));
    if (!out(printable.put(static_cast<uint8_t>(text.back())))) return {};
  }
  out(printable.finish());
  return {};
}

}  // namespace

Status generate_from_run(const std::string& run, std::optional<uint64_t> step,
                         const GenerateOptions& options, const TextSink& out) {
  auto reader = Reader::open(run, step);
  if (!reader) return forward(reader);
  auto config = config_of((*reader)->state(), (*reader)->path());
  if (!config) return forward(config);
  auto engine = make_frozen_engine(*config);
  if (!engine) return forward(engine);
  if (auto s = (*reader)->read(engine->shard->wanted(), *engine->device, *engine->stream); !s)
    return s;
  if (auto s = engine->shard->spread(*engine->stream); !s) return s;
  return generate(*engine, options, out);
}

Status generate_untrained(const RunConfig& config, const GenerateOptions& options,
                          const TextSink& out) {
  auto engine = make_frozen_engine(config);
  if (!engine) return forward(engine);
  return generate(*engine, options, out);
}

}  // namespace trainlaunch
