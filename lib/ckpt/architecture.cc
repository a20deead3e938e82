#include "ckpt/architecture.h"

#include <charconv>

#include "data/data.h"

namespace trainlaunch {

namespace {

// Far beyond any model, and small enough that no product of two overflows.
constexpr int64_t most = int64_t{1} << 20;

Status read(const State& state, const std::string& key, int64_t& value) {
  const auto it = state.config.find(key);
  if (it == state.config.end()) return fail("the configuration has no " + key);
  const char *begin = it->second.data(), *end = begin + it->second.size();
  const auto [rest, error] = std::from_chars(begin, end, value);
  if (error == std::errc() && rest == end && value > 0 && value <= most) return {};
  return fail("the configuration's " + key + " is no number from 1 to " + std::to_string(most));
}

}  // namespace

Result<GptConfig> architecture_of(const State& state) {
  GptConfig c;
  c.vocab = Text::vocab;
  if (auto s = read(state, "model.layers", c.layers); !s) return forward(s);
  if (auto s = read(state, "model.heads", c.heads); !s) return forward(s);
  if (auto s = read(state, "model.width", c.width); !s) return forward(s);
  if (auto s = read(state, "model.context", c.context); !s) return forward(s);
  return c;
}

Result<std::unique_ptr<Model>> model_of(const TensorSizes& tensors, const GptConfig& config) {
  if (static_cast<uint64_t>(config.layers) > tensors.size())
    return fail("it has fewer tensors than layers");
  return make_gpt(config);
}

std::map<std::string, std::string> settings_of(const GptConfig& c) {
  return {{"model.layers", std::to_string(c.layers)},
          {"model.heads", std::to_string(c.heads)},
          {"model.width", std::to_string(c.width)},
          {"model.context", std::to_string(c.context)}};
}

}  // namespace trainlaunch
