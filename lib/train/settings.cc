#include "train/settings.h"

#include <array>
#include <charconv>
#include <vector>

#include "ckpt/architecture.h"

namespace trainlaunch {

namespace {

std::string text(double x) {
  std::array<char, 32> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), x).ptr;
  return {buffer.data(), end};
}

std::string word_of(OnSpike x) {
  switch (x) {
    case OnSpike::ignore:
      return "ignore";
    case OnSpike::say:
      return "say";
    case OnSpike::skip:
      return "skip";
    case OnSpike::roll_back:
      return "rollback";
  }
  return "";
}
std::string word_of(OnNan x) {
  return x == OnNan::skip ? "skip" : x == OnNan::roll_back ? "rollback" : "stop";
}

// What a continuation must have in common with what it continues: the model; when training has
// begun, how; and besides, if the same bits were promised whatever happens to the run.
constexpr std::array model_options{"model.layers", "model.heads", "model.width", "model.context"};
constexpr std::array training_options{"train.seed", "train.global-batch"};
constexpr std::array canonical_options{"deterministic", "train.micro-batches"};

// Weights that `checkpoint import` has brought have seen no text of ours.
bool is_imported(const State& saved) { return saved.step == 0 && saved.data_digest.empty(); }

}  // namespace

std::map<std::string, std::string> settings_of(const RunConfig& c) {
  const bool canonical = c.deterministic == Deterministic::canonical;
  return {{"deterministic", canonical ? "canonical" : "same-ranks"},
          {"model.layers", std::to_string(c.model.layers)},
          {"model.heads", std::to_string(c.model.heads)},
          {"model.width", std::to_string(c.model.width)},
          {"model.context", std::to_string(c.model.context)},
          {"data.path", c.data.path},
          {"train.steps", std::to_string(c.train.steps)},
          {"train.global-batch", std::to_string(c.train.global_batch)},
          {"train.micro-batch", std::to_string(c.train.micro_batch)},
          {"train.micro-batches", std::to_string(c.train.micro_batches)},
          {"train.recompute", c.train.recompute == Recompute::block ? "block" : "none"},
          {"train.seed", std::to_string(c.train.seed)},
          {"optim.lr", text(c.optim.lr)},
          {"optim.min-lr", text(c.optim.min_lr)},
          {"optim.warmup", std::to_string(c.optim.warmup)},
          {"optim.beta1", text(c.optim.beta1)},
          {"optim.beta2", text(c.optim.beta2)},
          {"optim.eps", text(c.optim.eps)},
          {"optim.weight-decay", text(c.optim.weight_decay)},
          {"optim.clip", text(c.optim.clip)},
          {"guard.spike", word_of(c.guard.spike)},
          {"guard.loss-z", text(c.guard.loss_z)},
          {"guard.norm-z", text(c.guard.norm_z)},
          {"guard.window", std::to_string(c.guard.window)},
          {"guard.nan", word_of(c.guard.nan)},
          {"parallel.shard", name_of(c.parallel.shard)},
          {"precision.compute", name_of(c.precision.compute)},
          {"precision.wire", name_of(c.precision.wire)},
          {"precision.rounding",
           c.precision.rounding == Rounding::stochastic ? "stochastic" : "nearest"}};
}

Status check_unchanged(const State& saved, const RunConfig& config, const std::string& data_digest,
                       const std::string& checkpoint) {
  const std::string advice = ": set it back, or begin another run with a run-dir of its own";
  const auto now = settings_of(config);
  std::vector<const char*> fixed(model_options.begin(), model_options.end());
  if (!is_imported(saved))
    fixed.insert(fixed.end(), training_options.begin(), training_options.end());
  if (const auto was = saved.config.find(canonical_options[0]);
      was != saved.config.end() && was->second == "canonical")
    fixed.insert(fixed.end(), canonical_options.begin(), canonical_options.end());
  for (const char* key : fixed) {
    auto then = saved.config.find(key);
    if (then == saved.config.end())
      return fail(checkpoint + " does not say its " + key, exit_code::usage);
    if (then->second != now.at(key))
      return fail(std::string(key) + " is " + now.at(key) + ", but " + checkpoint +
                      " was made with " + then->second + advice,
                  exit_code::usage);
  }
  if (is_imported(saved)) return {};
  if (saved.data_digest != data_digest)
    return fail("data.path: " + config.data.path + " is not the text that " + checkpoint +
                    " was made with (XXH3-128 " + data_digest + " instead of " + saved.data_digest +
                    ")" + advice,
                exit_code::usage);
  return {};
}

Result<RunConfig> config_of(const State& saved, const std::string& checkpoint) {
  auto model = architecture_of(saved);
  if (!model) return fail(checkpoint + ": " + model.error().what);
  RunConfig c;
  c.model = {static_cast<int>(model->layers), static_cast<int>(model->heads),
             static_cast<int>(model->width), static_cast<int>(model->context)};
  return c;
}

}  // namespace trainlaunch
