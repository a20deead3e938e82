#include <algorithm>
#include <vector>

#include "base/printable.h"
#include "ckpt/ckpt.h"
#include "data/data.h"
#include "train/engine.h"
#include "train/sample.h"
#include "train/settings.h"
#include "train/train.h"

namespace trainlaunch {

namespace {

constexpr Seconds patience{600};  // for one token

// The logits after the last of `text`, of which the model sees as much as its context holds.
Status logits_after(Engine& e, const std::vector<int32_t>& text, std::vector<float>& logits) {
  const int64_t context = e.tokens.cols(),
                seen = std::min(context, static_cast<int64_t>(text.size()));
  std::vector<int32_t> window(static_cast<size_t>(context), 0);
  std::copy(text.end() - seen, text.end(), window.begin());
  e.device->upload(*e.stream, e.tokens, View(window.data(), DType::i32, {1, context}));
  Ctx ctx = e.context();
  e.model->logits(ctx, e.batch(1), seen - 1, e.logits, *e.shard);
  e.device->download(*e.stream, View(logits.data(), DType::f32, {Text::vocab}), e.logits);
  return e.stream->record().wait(Deadline::in(patience));
}

Status generate(Engine& engine, const GenerateOptions& options, const TextSink& out) {
  Printable printable;
  std::vector<int32_t> text;
  for (const char c : options.prompt) {
    text.push_back(static_cast<uint8_t>(c));
    out(printable.put(static_cast<uint8_t>(c)));
  }
  if (text.empty()) text.push_back('\n');  // a model continues something
  std::vector<float> logits(Text::vocab);
  for (int64_t i = 0; i < options.tokens; ++i) {
    if (auto s = logits_after(engine, text, logits); !s) return s;
    text.push_back(choose(logits, options, static_cast<uint64_t>(i)));
    out(printable.put(static_cast<uint8_t>(text.back())));
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
  return generate(*engine, options, out);
}

Status generate_untrained(const RunConfig& config, const GenerateOptions& options,
                          const TextSink& out) {
  auto engine = make_frozen_engine(config);
  if (!engine) return forward(engine);
  return generate(*engine, options, out);
}

}  // namespace trainlaunch
