// Prints what the engine makes of a text with the weights of a checkpoint: for each of its bytes a
// line with the logits of all 256 that may follow.
//
//   logits_probe CHECKPOINT TEXT
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "ckpt/ckpt.h"
#include "data/data.h"
#include "train/engine.h"
#include "train/settings.h"

using namespace trainlaunch;

namespace {

Status run(const std::string& checkpoint, const std::string& text) {
  auto reader = Reader::open_at(checkpoint);
  if (!reader) return forward(reader);
  auto config = config_of((*reader)->state(), checkpoint);
  if (!config) return forward(config);
  auto e = make_frozen_engine(*config);
  if (!e) return forward(e);
  if (auto s = (*reader)->read(e->shard->wanted(), *e->device, *e->stream); !s) return s;

  const size_t n = std::min(text.size(), static_cast<size_t>(e->tokens.cols()));
  std::vector<float> logits(Text::vocab);
  Ctx ctx = e->context();
  for (size_t i = 0; i < n; ++i) {
    int32_t token = static_cast<uint8_t>(text[i]);
    const View next = e->tokens.slice(0, 1).reshape({1, 1});
    e->device->upload(*e->stream, next, View(&token, DType::i32, {1, 1}));
    e->model->extend(ctx, next, static_cast<int64_t>(i), e->computed_logits, *e->shard);
    e->ops->copy(*e->stream, e->computed_logits, e->logits);
    e->device->download(*e->stream, View(logits.data(), DType::f32, {Text::vocab}), e->logits);
    if (auto s = e->stream->record().wait(Deadline::in(Seconds(60))); !s) return s;
    for (float x : logits) std::printf("%.9g ", static_cast<double>(x));
    std::printf("\n");
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  auto done = run(argv[1], argv[2]);
  if (!done) std::fprintf(stderr, "%s\n", done.error().what.c_str());
  return done ? 0 : 1;
}
