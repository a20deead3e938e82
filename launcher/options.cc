#include "launcher/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <sstream>

namespace po = boost::program_options;

namespace trainlaunch {
namespace {

constexpr int64_t any = std::numeric_limits<int64_t>::max();
constexpr int64_t any_int = std::numeric_limits<int>::max();
constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr double below_one = 0.999999;  // of what is divided by one minus it

bool is_whole(const std::string& text, int64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

bool is_real(const std::string& text, double& out) {
  char* end = nullptr;
  out = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' && std::isfinite(out);
}

std::string shortest(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", x);
  return text;
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i)
    out += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return out;
}

std::string trimmed(const std::string& line) {
  const auto first = line.find_first_not_of(" \t\r");
  if (first == std::string::npos) return "";
  return line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
}

// Levenshtein's distance: how many letters differ.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
    }
  }
  return row[b.size()];
}

tl::unexpected<Error> wrong(std::string what) { return fail(std::move(what), exit_code::usage); }

}  // namespace

Result<std::string> read_text(const std::string& path) {
  constexpr size_t limit = size_t{1} << 20;
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown))
    return fail(path + " is a directory; name a configuration file", exit_code::usage);
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail_errno(path, exit_code::usage);
  std::string text(limit + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (file.bad()) return fail_errno(path);
  const bool binary = text.find('\0') != std::string::npos;
  if (binary || text.size() > limit)
    return fail(path + " is not a configuration file: " +
                    (binary ? "it holds binary data" : "it is larger than 1 MiB"),
                exit_code::usage);
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
  if (text.starts_with(byte_order_mark)) text.erase(0, byte_order_mark.size());
  return text;
}

void OptionTable::group(const std::string& caption) {
  groups_.push_back({po::options_description(caption), true});
}

void OptionTable::command_group(const std::string& caption) {
  groups_.push_back({po::options_description(caption), false});
}

void OptionTable::add(const std::string& name, Check check, const std::string& start,
                      const std::string& help, std::function<void(const std::string&)> set,
                      const std::string& argument) {
  auto* value = po::value<std::string>()->notifier(std::move(set));
  if (!start.empty()) value->default_value(start);
  if (!argument.empty()) value->value_name(argument);
  groups_.back().options.add_options()(name.c_str(), value, help.c_str());
  checks_[name] = std::move(check);
}

void OptionTable::real(const std::string& name, double* target, double lo, double hi,
                       const std::string& help) {
  const auto check = [lo, hi](const std::string& text) -> std::string {
    double x = 0;
    if (is_real(text, x) && x >= lo && x <= hi) return "";
    return hi == infinite ? "must be a number, at least " + shortest(lo)
                          : "must be a number from " + shortest(lo) + " to " + shortest(hi);
  };
  add(name, check, shortest(*target), help,
      [target](const std::string& text) { (void)is_real(text, *target); });
}

void OptionTable::real_or_zero(const std::string& name, double* target, double lo, double hi,
                               const std::string& help) {
  const auto check = [lo, hi](const std::string& text) -> std::string {
    double x = 0;
    if (is_real(text, x) && (x == 0 || (x >= lo && x <= hi))) return "";
    return "must be 0 or a number from " + shortest(lo) + " to " + shortest(hi);
  };
  add(name, check, shortest(*target), help,
      [target](const std::string& text) { (void)is_real(text, *target); });
}

void OptionTable::real_or_auto(const std::string& name, double* target, double lo, double hi,
                               const std::string& help) {
  const auto check = [lo, hi](const std::string& text) -> std::string {
    double x = 0;
    if (text == "auto" || (is_real(text, x) && x >= lo && x <= hi)) return "";
    return "must be auto or a number from " + shortest(lo) + " to " + shortest(hi);
  };
  add(name, check, *target > 0 ? shortest(*target) : "auto", help,
      [target](const std::string& text) {
        if (text == "auto")
          *target = 0;
        else
          (void)is_real(text, *target);
      });
}

void OptionTable::path(const std::string& name, std::string* target, const std::string& help) {
  const auto check = [](const std::string& text) -> std::string {
    return text.empty() ? "must be a path" : "";
  };
  add(name, check, *target, help, [target](const std::string& t) { *target = t; });
}

void OptionTable::text(const std::string& name, std::string* target, const std::string& help,
                       bool shown) {
  add(name, {}, shown ? *target : "", help, [target](const std::string& t) { *target = t; });
}

void OptionTable::flag(const std::string& name, bool* target, const std::string& help) {
  groups_.back().options.add_options()(name.c_str(), po::bool_switch(target), help.c_str());
}

void OptionTable::yes_or_no(const std::string& name, bool* target, const std::string& help) {
  auto* value = po::value<std::string>()
                    ->default_value(*target ? "yes" : "no")
                    ->implicit_value("yes")
                    ->notifier([target](const std::string& text) { *target = text == "yes"; });
  groups_.back().options.add_options()(name.c_str(), value, help.c_str());
  checks_[name] = one_of({"yes", "no"});
}

void OptionTable::word_or_number(const std::string& name, std::string* target,
                                 const std::vector<std::string>& words, const std::string& help) {
  const auto check = [words](const std::string& text) -> std::string {
    int64_t n = 0;
    if (std::find(words.begin(), words.end(), text) != words.end()) return "";
    if (is_whole(text, n) && n >= 0) return "";
    return "must be " + joined(words) + " or a whole number";
  };
  add(name, check, *target, help, [target](const std::string& t) { *target = t; });
}

void OptionTable::optional_number(const std::string& name, std::optional<uint64_t>* target,
                                  const std::string& help) {
  add(name, whole_in(0, any), "", help,
      [target](const std::string& text) { *target = static_cast<uint64_t>(std::stoull(text)); });
}

void OptionTable::positional(const std::string& what, std::string* target) {
  positionals_.emplace_back(what, target);
}

OptionTable::Check OptionTable::whole_in(int64_t lo, int64_t hi) {
  return [lo, hi](const std::string& text) -> std::string {
    int64_t n = 0;
    if (is_whole(text, n) && n >= lo && n <= hi) return "";
    return hi == any
               ? "must be a whole number, at least " + std::to_string(lo)
               : "must be a whole number from " + std::to_string(lo) + " to " + std::to_string(hi);
  };
}

OptionTable::Check OptionTable::one_of(std::vector<std::string> words) {
  return [words = std::move(words)](const std::string& text) -> std::string {
    if (std::find(words.begin(), words.end(), text) != words.end()) return "";
    return "must be " + joined(words);
  };
}

Status OptionTable::check(const std::string& name, const std::vector<std::string>& values,
                          const std::string& where) const {
  const auto it = checks_.find(name);
  if (it == checks_.end() || !it->second || values.empty()) return {};
  const std::string complaint = it->second(values.front());
  if (complaint.empty()) return {};
  return wrong(where + name + " " + complaint + ", not '" + values.front() + "'");
}

tl::unexpected<Error> OptionTable::unknown(const std::string& where, const std::string& name,
                                           std::string_view dashes) const {
  std::string best;
  size_t least = 4;  // further away it is a guess
  for (const Group& g : groups_) {
    if (!g.in_file && dashes.empty()) continue;
    for (const auto& option : g.options.options())
      if (const size_t d = distance(name, option->long_name()); d < least) {
        least = d;
        best = option->long_name();
      }
  }
  const std::string d(dashes);
  return wrong(where + "no option " + d + name +
               (best.empty() ? "" : "; did you mean " + d + best + "?") + " (see " + command_ +
               " --help)");
}

Status OptionTable::read_command_line(const std::vector<std::string>& arguments) {
  po::options_description all;
  for (const Group& g : groups_) all.add(g.options);
  po::options_description hidden;
  po::positional_options_description order;
  for (const auto& [what, target] : positionals_) {
    hidden.add_options()(what.c_str(), po::value<std::string>());
    order.add(what.c_str(), 1);
  }
  all.add(hidden);
  // The library takes "--name=" for a mistake. It is an empty value, as in the file.
  std::vector<std::string> words;
  std::vector<po::option> empty;
  for (const std::string& a : arguments) {
    const bool none = a.starts_with("--") && a.ends_with('=');
    const std::string name = none ? a.substr(2, a.size() - 3) : "";
    if (none && checks_.contains(name))
      empty.emplace_back(name, std::vector<std::string>{""});
    else
      words.push_back(a);
  }
  try {
    const int style =
        po::command_line_style::default_style & ~po::command_line_style::allow_guessing;
    auto parsed = po::command_line_parser(words).options(all).positional(order).style(style).run();
    parsed.options.insert(parsed.options.end(), empty.begin(), empty.end());
    for (const auto& option : parsed.options)
      if (Status s = check(option.string_key, option.value, "--"); !s) return s;
    po::store(parsed, values_);
    po::notify(values_);
  } catch (const po::unknown_option& e) {
    std::string name = e.get_option_name();  // "--name=value"
    name = name.substr(0, name.find('='));
    return unknown("", name.substr(std::min(name.find_first_not_of('-'), name.size())), "--");
  } catch (const po::too_many_positional_options_error&) {
    return wrong("too many arguments; see " + command_ + " --help");
  } catch (const std::exception& e) {
    return wrong(std::string(e.what()) + "; see " + command_ + " --help");
  }
  for (const auto& [what, target] : positionals_) {
    if (!values_.count(what)) return wrong(what + " is missing; see " + command_ + " --help");
    *target = values_[what].as<std::string>();
    // A variable of the user's script that has no value.
    if (target->empty()) return wrong(what + " is empty; see " + command_ + " --help");
  }
  return {};
}

// Each line goes through the library's parser by itself, below its section, so that whatever is
// wrong has a line number.
Status OptionTable::read_file(const std::string& path) {
  auto text = read_text(path);
  if (!text) return forward(text);
  std::istringstream file(*text);
  po::options_description all;
  for (const Group& g : groups_)
    if (g.in_file) all.add(g.options);
  std::map<std::string, int> seen;
  std::string section, line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string where = path + ":" + std::to_string(number) + ": ";
    line = trimmed(line.substr(0, line.find('#')));
    if (line.starts_with('[')) {
      section = line + "\n";
      if (!line.ends_with(']')) return wrong(where + "a section is written [name]");
      continue;
    }
    std::istringstream one(section + line + "\n");
    try {
      const auto parsed = po::parse_config_file(one, all);
      for (const auto& option : parsed.options) {
        const std::string& name = option.string_key;
        if (const auto [before, fresh] = seen.emplace(name, number); !fresh)
          return wrong(where + name + " was given on line " + std::to_string(before->second) +
                       " already; remove one");
        if (Status s = check(name, option.value, where); !s) return s;
      }
      po::store(parsed, values_);
    } catch (const po::unknown_option& e) {
      return unknown(where, e.get_option_name(), "");
    } catch (const po::invalid_syntax&) {
      return wrong(where + "'" + line + "' is neither key = value nor [section]");
    } catch (const std::exception& e) {
      return wrong(where + e.what());
    }
  }
  try {
    po::notify(values_);
  } catch (const std::exception& e) {
    return wrong(path + ": " + e.what());
  }
  return {};
}

std::string OptionTable::help() const {
  std::ostringstream out;
  for (const Group& g : groups_) out << g.options << "\n";
  return out.str();
}

void add_run_options(OptionTable& t, RunConfig& c) {
  t.group("The run");
  t.path("run-dir", &c.run_dir, "folder of checkpoints and records");
  t.word_or_number(
      "resume", &c.resume, {"auto", "no"},
      "auto: continue from the newest good checkpoint, if any; no; or the step of one");
  t.real("memory", &c.memory, 0, 1e9,
         "GiB that a rank may use; 0: what the system allows. A run that needs more is refused");
  t.choice<std::string>("device", &c.device, {{"auto", "auto"}, {"cpu", "cpu"}, {"cuda", "cuda"}},
                        "auto: cuda where it is built in and present");
  t.choice<Deterministic>(
      "deterministic", &c.deterministic,
      {{"same-ranks", Deterministic::same_ranks}, {"canonical", Deterministic::canonical}},
      "canonical: the same bits on any number of ranks, a power of two up to train.micro-batches");
  t.yes_or_no("profile", &c.profile, "say at the end where the time of the steps went");
  t.text("trace", &c.trace, "write a Chrome trace to this file");
  t.group("[model]: a GPT-2 over bytes");
  t.whole("model.layers", &c.model.layers, 1, 1000, "transformer blocks");
  t.whole("model.heads", &c.model.heads, 1, 1000, "attention heads; divides the width");
  t.whole("model.width", &c.model.width, 1, 1 << 20, "of the residual stream");
  t.whole("model.context", &c.model.context, 1, 1 << 20, "bytes seen at once");
  t.group("[data]");
  t.text("data.path", &c.data.path, "text file to learn from (required)");
  t.choice<bool>("data.ledger", &c.data.ledger, {{"yes", true}, {"no", false}},
                 "keep which samples each step used, in ledger-RANK.jsonl");
  t.group("[train]");
  t.whole("train.steps", &c.train.steps, 0, any, "optimizer steps of the whole run");
  t.whole("train.global-batch", &c.train.global_batch, 1, any_int,
          "sequences per step, over all ranks");
  t.whole("train.micro-batch", &c.train.micro_batch, 0, any_int,
          "sequences per forward pass; 0: chosen");
  t.whole("train.micro-batches", &c.train.micro_batches, 0, any_int,
          "of a global batch, with deterministic=canonical: a power of two");
  t.choice<Recompute>("train.recompute", &c.train.recompute,
                      {{"none", Recompute::none}, {"block", Recompute::block}},
                      "block: keep only where each layer begins, and compute the rest twice");
  t.whole("train.seed", &c.train.seed, 0, any, "of initial weights and sample order");
  t.whole("train.log-every", &c.train.log_every, 1, any, "steps between progress lines");
  t.whole("train.eval-every", &c.train.eval_every, 0, any, "steps between evaluations; 0: none");
  t.whole("train.eval-batches", &c.train.eval_batches, 1, any_int, "batches of an evaluation");
  t.whole("train.threads", &c.train.threads, 0, 4096, "per rank; 0: the CPUs it may use");
  t.real_or_zero("train.peak-tflops", &c.train.peak_tflops, 0.001, 1e9,
                 "of a rank, what mfu is a share of; 0: found out");
  t.real("train.deadline", &c.train.deadline, 1, 1e9, "seconds to wait for the other ranks");
  t.group("[optim]: AdamW; warm-up, then a cosine");
  t.real("optim.lr", &c.optim.lr, 0, infinite, "learning rate after the warm-up");
  t.real("optim.min-lr", &c.optim.min_lr, 0, infinite, "learning rate at the end");
  t.whole("optim.warmup", &c.optim.warmup, 0, any, "steps");
  t.real("optim.beta1", &c.optim.beta1, 0, below_one, "decay of the first moment");
  t.real("optim.beta2", &c.optim.beta2, 0, below_one, "decay of the second moment");
  t.real("optim.eps", &c.optim.eps, 0, infinite, "added to the denominator");
  t.real("optim.weight-decay", &c.optim.weight_decay, 0, infinite, "of matrices");
  t.real("optim.clip", &c.optim.clip, 0, infinite, "largest norm of the gradient; 0: no limit");
  t.group("[parallel]");
  t.choice<ShardPolicy>("parallel.shard", &c.parallel.shard,
                        {{"none", ShardPolicy::none},
                         {"optimizer", ShardPolicy::optimizer},
                         {"gradients", ShardPolicy::gradients},
                         {"full", ShardPolicy::full}},
                        "what each rank keeps of its own part only: the optimizer's state, also "
                        "gradients, also weights");
  t.real_or_auto("parallel.bucket-mib", &c.parallel.bucket_mib, 0.001, 100000,
                 "MiB of gradients reduced together; auto: measured at the start");
  t.group("[precision]");
  t.choice<DType>("precision.compute", &c.precision.compute,
                  {{"f32", DType::f32}, {"bf16", DType::bf16}},
                  "of activations and of the weights that compute; bf16 keeps f32 ones to update");
  t.choice<DType>("precision.wire", &c.precision.wire, {{"f32", DType::f32}, {"bf16", DType::bf16}},
                  "of gradients between nodes");
  t.choice<Rounding>("precision.rounding", &c.precision.rounding,
                     {{"nearest", Rounding::nearest}, {"stochastic", Rounding::stochastic}},
                     "of weights that compute in bf16");
  t.group("[guard]: against losses and gradients that have gone wrong");
  t.choice<OnSpike>("guard.spike", &c.guard.spike,
                    {{"ignore", OnSpike::ignore},
                     {"say", OnSpike::say},
                     {"skip", OnSpike::skip},
                     {"rollback", OnSpike::roll_back}},
                    "what a loss or norm far above those before it does");
  t.real("guard.loss-z", &c.guard.loss_z, 0, infinite,
         "deviations above the mean that make a loss a spike; 0: none is");
  t.real("guard.norm-z", &c.guard.norm_z, 0, infinite, "the same of the gradient's norm");
  t.whole("guard.window", &c.guard.window, 2, 100000, "steps that say what is usual");
  t.choice<OnNan>("guard.nan", &c.guard.nan,
                  {{"skip", OnNan::skip}, {"rollback", OnNan::roll_back}, {"stop", OnNan::stop}},
                  "what a loss or gradient that is not finite does");
  t.whole("guard.rollbacks", &c.guard.rollbacks, 0, any_int, "of a run, before it ends with 93");
  t.group("[checkpoint]");
  t.whole("checkpoint.every", &c.checkpoint.every, 0, any, "steps; 0: at the end only");
  t.whole("checkpoint.keep", &c.checkpoint.keep, 0, any_int,
          "the newest ones are kept, two at least; 0: all");
  t.whole("checkpoint.keep-every", &c.checkpoint.keep_every, 0, any,
          "steps: multiples of it are kept for good; 0: none");
  t.whole("checkpoint.attempts", &c.checkpoint.attempts, 0, any_int,
          "starts from one step without a new checkpoint; 0: no limit");
  t.text("checkpoint.local-dir", &c.checkpoint.local_dir,
         "of each node, for checkpoints that live as long as it does", false);
  t.whole("checkpoint.local-every", &c.checkpoint.local_every, 0, any,
          "steps between those in local-dir; 0: none");
  t.choice<OnSaveError>("checkpoint.on-error", &c.checkpoint.on_error,
                        {{"continue", OnSaveError::go_on}, {"abort", OnSaveError::abort}},
                        "what a checkpoint that cannot be written does to the run");
  t.choice<bool>("checkpoint.verify", &c.checkpoint.verify, {{"yes", true}, {"no", false}},
                 "read each one back; what was not is never removed");
  t.whole("checkpoint.writers", &c.checkpoint.writers, 0, any_int,
          "ranks of a node that write at a time; 0: all");
}

}  // namespace trainlaunch
