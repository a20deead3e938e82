#include "train/train.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <span>

#include "base/printable.h"
#include "ckpt/ckpt.h"
#include "data/data.h"
#include "train/abandon.h"
#include "train/collective.h"
#include "train/describe.h"
#include "train/engine.h"
#include "train/feeder.h"
#include "train/guard.h"
#include "train/ledger.h"
#include "train/metrics.h"
#include "train/progress.h"
#include "train/run_plan.h"
#include "train/saving.h"
#include "train/settings.h"
#include "train/stop.h"
#include "train/words.h"

namespace trainlaunch {

namespace {

// Sums over the global batch, the same on every rank.
struct Sums {
  double loss = 0, tokens = 0;
  double stop = 0, end = 0;  // ranks that were asked to stop, or whose checkpoints end the run
  double mean() const { return loss / tokens; }
};

struct Step {
  Sums sums;
  Verdict verdict;
};

// A stop that is wanted waits for the end of a step, or of an evaluation, that is as near as this.
// Slurm kills 30 s after its SIGTERM, and a checkpoint is still to be written.
constexpr Seconds near_end{10};

// Neighbours first, then neighbouring pairs, and so on: the bits depend on the terms alone, not on
// which ranks had them.
double sum_as_tree(std::span<const double> x) {
  if (x.size() < 2) return x.empty() ? 0 : x[0];
  const size_t half = std::bit_floor(x.size() - 1);
  return sum_as_tree(x.first(half)) + sum_as_tree(x.subspan(half));
}

class Run {
 public:
  Run(const RunConfig& config, WorkerControl& control)
      : config_(config),
        control_(control),
        world_(control.world()),
        schedule_{config.optim.lr, config.optim.min_lr, static_cast<uint64_t>(config.optim.warmup),
                  static_cast<uint64_t>(config.train.steps)},
        guard_(config.guard),
        saving_(config, control, [this](const std::string& line) { say(line); }) {}

  Status go() {
    auto steps = prepare();
    if (!steps) return forward(steps);
    if (*steps) return {};
    Status done = loop();
    if (engine_.profile)
      for (const std::string& line : engine_.profile->table(engine_.ceiling)) say(line);
    if (auto written = write_trace(); done && !written) return written;
    return done;
  }

 private:
  uint64_t last_step() const { return static_cast<uint64_t>(config_.train.steps); }
  bool speaks() const { return world_.rank == 0; }
  void say(const std::string& line) const {
    if (!speaks()) return;
    std::printf("%s\n", one_line(line).c_str());
    std::fflush(stdout);
  }
  // What this rank is at, for those who ask why it is late or has died.
  void tell(const std::string& phase) const {
    control_.progress(step_, saving_.saving() ? phase + ", saving" : phase);
  }
  Deadline deadline() const { return Deadline::in(Seconds(config_.train.deadline)); }

  // Who failed is said by the caller, which knows the rank.
  tl::unexpected<Error> in_step(Error e) const {
    e.what = "step " + std::to_string(step_ + 1) + ": " + e.what;
    return tl::unexpected<Error>(std::move(e));
  }

  // Preparation -------------------------------------------------------------------------------

  // True: there is nothing left to do.
  Result<bool> prepare() {
    if (auto s = check_batches(config_, world_.size); !s) return forward(s);
    if (auto s = check_trace(); !s) return forward(s);
    if (auto s = open_text(); !s) return forward(s);
    if (auto s = saving_.open(); !s) return forward(s);
    auto reader = find_checkpoint();
    if (!reader) return forward(reader);
    if (*reader && (*reader)->state().step >= last_step()) {
      say(config_.run_dir + " is complete: " + std::to_string((*reader)->state().step) + " of " +
          plural(last_step(), "step") + " done; a larger train.steps goes on from there");
      return true;
    }
    auto threads = threads_of_rank(config_, control_);
    if (!threads) return forward(threads);
    if (auto s = all_well(control_, "memory", fits(*threads)); !s) return forward(s);
    auto engine = make_training_engine(config_, *threads, control_);
    if (auto s = all_well(control_, "engine", engine); !s) return forward(s);
    engine_ = std::move(*engine);
    if (auto s = begin_from(*reader); !s) return forward(s);
    auto copy = saving_.reserve(engine_);
    if (!copy) return forward(copy);
    feeder_.emplace(config_, *text_, engine_);
    abandonment_.emplace(control_, [this] { engine_.comm->abort(); });
    progress_.emplace(
        last_step(),
        Progress::Work{static_cast<double>(config_.train.global_batch * config_.model.context),
                       engine_.model->flops_per_token(),
                       engine_.peak.flops * static_cast<double>(world_.size)});
    for (const std::string& line : describe({config_, world_, engine_, *text_, *copy,
                                             *reader ? (*reader)->path() : std::string()}))
      say(line);
    if (auto s = open_records(); !s) return forward(s);
    return false;
  }

  std::string trace_file() const {
    return config_.trace + (world_.rank == 0 ? "" : ".rank" + std::to_string(world_.rank));
  }

  // It is written at the end; that it cannot be must be known before a week of training.
  Status check_trace() {
    Status writable;
    if (!config_.trace.empty() && !std::ofstream(trace_file(), std::ios::app))
      writable = fail_errno("trace: cannot write " + trace_file(), exit_code::usage);
    return all_well(control_, "trace", writable);
  }

  Status open_text() {
    auto text = Text::open(config_.data.path, config_.model.context);
    if (auto s = all_well(control_, "data", text); !s) return s;
    text_ = std::move(*text);
    auto digests = control_.gather("data: digest", text_->digest(), deadline());
    if (!digests) return forward(digests);
    const auto other = std::find_if(digests->begin(), digests->end(),
                                    [&](const std::string& d) { return d != digests->front(); });
    if (other == digests->end()) return {};
    const auto rank = static_cast<size_t>(other - digests->begin());
    return fail("data.path: " + config_.data.path + " is one text on " + world_.nodes[0] +
                    " and another on " + world_.node_name(rank),
                exit_code::usage);
  }

  // Before anything large is allocated, on any rank of the node.
  Status fits(int threads) const {
    auto need = memory_need(config_, world_.rank, places_of(config_, world_.node_of), threads,
                            resident_share());
    if (!need) return forward(need);
    const auto of_node = std::count(world_.node_of.begin(), world_.node_of.end(), world_.node);
    return check_memory(config_, *need, allowance(config_, static_cast<int>(of_node)));
  }

  Result<std::unique_ptr<Reader>> find_checkpoint() {
    if (config_.resume == "no") {
      const auto steps = list_checkpoints(config_.run_dir);
      Status clean;
      if (!steps) clean = tl::unexpected<Error>(steps.error());
      if (steps && !steps->empty())
        clean = fail("resume=no: " + config_.run_dir + " holds checkpoints up to step " +
                         std::to_string(steps->back()) +
                         "; use resume=auto, or another run-dir for another run",
                     exit_code::usage);
      if (auto s = all_well(control_, "resume", clean); !s) return forward(s);
      return std::unique_ptr<Reader>();
    }
    if (auto s = read_chosen_step(); !s) return forward(s);
    return saving_.find(chosen_, accept());
  }

  Status read_chosen_step() {
    if (config_.resume == "auto") return {};
    const char* end = config_.resume.data() + config_.resume.size();
    uint64_t n = 0;
    const auto [rest, error] = std::from_chars(config_.resume.data(), end, n);
    if (error != std::errc() || rest != end)
      return fail("resume=" + config_.resume + " is not one of auto, no, or a step",
                  exit_code::usage);
    chosen_ = n;
    return {};
  }

  Saving::Accept accept() const {
    return [this](const Reader& reader) {
      return check_unchanged(reader.state(), config_, text_->digest(), reader.path());
    };
  }

  // From what was found, which may turn out to be something older.
  Status begin_from(std::unique_ptr<Reader>& found) {
    if (auto s = saving_.load(found, chosen_, accept(), engine_); !s) return s;
    if (found) {
      const State& state = found->state();
      step_ = state.step;
      position_.samples = state.samples;
      guard_.restore(state.guard);
    }
    return saving_.start(found.get());
  }

  // Records of steps after the present one belong to a past that is being repeated.
  Status open_records() {
    Status opened;
    if (speaks()) {
      auto metrics = Metrics::open(config_.run_dir, step_);
      if (metrics)
        metrics_ = std::move(*metrics);
      else
        opened = forward(metrics);
    }
    if (opened && config_.data.ledger) {
      auto ledger = SampleLedger::open(config_.run_dir, world_.rank, world_.size, step_);
      if (ledger)
        ledger_ = std::move(*ledger);
      else
        opened = forward(ledger);
    }
    return all_well(control_, "metrics", opened);
  }

  // The loop ----------------------------------------------------------------------------------

  Status loop() {
    if (step_ == 0 && config_.train.eval_every > 0)
      if (auto s = evaluate(); !s) return failed_or_left(std::move(s.error()));
    while (step_ < last_step()) {
      auto step = one_step();
      if (!step) return failed_or_left(std::move(step.error()));
      const Sums& sums = step->sums;
      const Action action = step->verdict.action;
      const bool last = step_ == last_step();
      // Weights that have gone wrong must not push good ones out of the run directory.
      const bool lost = !std::isfinite(sums.mean()) && action != Action::roll_back;
      const bool hopeless = action == Action::stop || guard_.hopeless() ||
                            (action == Action::roll_back && !guard_.may_roll_back()) ||
                            (lost && (last || sums.stop > 0));
      if (hopeless || sums.end > 0) {
        // No rank may leave before the others have what they need of it.
        if (auto s = engine_.comm->barrier(deadline()); !s) return s;
        return hopeless ? diverged(step->verdict) : end_unsaved();
      }
      if (action == Action::roll_back) {
        if (auto s = roll_back(step->verdict); !s) return s;
        if (sums.stop > 0) return stopped_early();
        continue;
      }
      // Before an evaluation: who asks for a stop may not wait long.
      if (sums.stop > 0 && !last) return stop_early();
      if (due(config_.train.eval_every) || (last && config_.train.eval_every > 0))
        if (auto s = evaluate(); !s) return failed_or_left(std::move(s.error()));
      const Levels levels{due(config_.checkpoint.every), !config_.checkpoint.local_dir.empty() &&
                                                             due(config_.checkpoint.local_every)};
      if (!last && !lost && (levels.shared || levels.local)) save({levels, false});
    }
    save({});
    return saving_.finish();
  }

  // Between passes of a step or an evaluation.
  Status may_go_on(size_t done, size_t passes, Clock::time_point begin) {
    if (done < passes && too_far(done, passes, begin)) abandonment_->leave();
    if (abandonment_->left()) return fail("left unfinished");
    return {};
  }
  // Whether a stop is wanted that cannot wait for all passes.
  bool too_far(size_t done, size_t passes, Clock::time_point begin) {
    if (!stop_.asked()) return false;
    if (stop_.urged()) return true;
    if (done == 0) return false;
    const Seconds spent = Clock::now() - begin;
    return spent * (static_cast<double>(passes - done) / static_cast<double>(done)) > near_end;
  }

  // An error of a step may come of a rank's having left it. Then the state is what the last step
  // has made, and is saved; not where a rank was still ending that one.
  Status failed_or_left(Error error) {
    if (!abandonment_->ask()) return tl::unexpected<Error>(std::move(error));
    auto steps =
        control_.gather("stop: step", std::to_string(step_), Deadline::in(storage_timeout));
    if (!steps) return forward(steps);
    if (std::any_of(steps->begin(), steps->end(),
                    [&](const std::string& s) { return s != steps->front(); }))
      return fail(
          "stopped while some ranks had ended a step and others had not; the last "
          "checkpoint counts");
    saving_.record("what came after step " + std::to_string(step_) +
                   " is left unfinished: a stop is wanted, and its end is not near");
    return stop_early();
  }

  Status diverged(const Verdict& v) const {
    std::string what = "step " + std::to_string(step_) + ": ";
    const std::string steps = plural(std::max<uint64_t>(guard_.skipped(), 1), "step");
    if (!v.finite)
      what += "the loss or its gradient has not been finite for " + steps;
    else
      what += v.why + ", and " + steps + " in a row changed no weight";
    if (v.action == Action::roll_back)
      what += ", and the run has gone back " + plural(guard_.rollbacks(), "time") +
              " already (guard.rollbacks)";
    return fail(
        what + "; " +
            (saving_.durable() ? "the checkpoint of step " + std::to_string(*saving_.durable()) +
                                     " is the last good one"
                               : std::string("there is no checkpoint")) +
            "; try a smaller optim.lr or a longer optim.warmup",
        exit_code::hopeless);
  }

  // To an older checkpoint, in place. The data goes on: what the steps since then have used, the
  // batch that was bad with it, is passed over.
  Status roll_back(const Verdict& v) {
    tell("roll back");
    const uint64_t from = step_;
    std::unique_ptr<Reader> found;
    if (auto s = saving_.go_back(guard_.older_than(from), found, accept(), engine_); !s) return s;
    const State& state = found->state();
    step_ = state.step;
    guard_.rolled_back(from, step_, state.guard);
    saving_.record("step " + std::to_string(from) + ": " + v.why + "; back to " + found->path() +
                   ", and on with sample " + std::to_string(position_.samples) +
                   ": the batches of steps " + std::to_string(step_ + 1) + " to " +
                   std::to_string(from) + " are passed over (rollback " +
                   std::to_string(guard_.rollbacks()) + " of at most " +
                   std::to_string(config_.guard.rollbacks) + ")");
    return open_records();
  }

  Status end_unsaved() {
    if (auto s = saving_.finish(); !s) return s;
    return fail("step " + std::to_string(step_) + ": another rank cannot save");
  }

  bool due(int64_t every) const { return every > 0 && step_ % static_cast<uint64_t>(every) == 0; }

  Result<Step> one_step() {
    const auto begin = Clock::now();
    tell("train");
    if (engine_.profile) engine_.profile->begin_step();
    auto sums = gradients();
    if (!sums) return in_step(std::move(sums.error()));
    tell("update");
    const StepScalars scalars{schedule_.at(step_), config_.optim.clip, sums->tokens,
                              guard_.norm_limit(sums->mean())};
    auto stats = engine_.shard->step(*engine_.stream, scalars);
    if (!stats) return in_step(std::move(stats.error()));
    if (engine_.profile) engine_.profile->end_step();
    ++step_;
    position_.samples += static_cast<uint64_t>(config_.train.global_batch);
    progress_->took(Clock::now() - begin);
    auto verdict = guard_.judge(sums->mean(), stats->grad_norm, saving_.has_saved());
    if (verdict.action == Action::say || verdict.action == Action::skip)
      saving_.record("step " + std::to_string(step_) + ": " + verdict.why +
                     (verdict.action == Action::skip ? "; weights are unchanged" : ""));
    if (due(config_.train.log_every) || step_ == 1 || step_ == last_step())
      log({step_, sums->mean(), scalars.lr, stats->grad_norm});
    return Step{*sums, std::move(verdict)};
  }

  // Forward and backward over this rank's part of the global batch; the reduction of gradients has
  // begun when this returns.
  Result<Sums> gradients() {
    Engine& e = engine_;
    Ctx ctx = e.context();
    e.shard->begin_step(*e.stream);
    clear_sums(config_.train.global_batch);
    const auto mine = deal(position_.samples, config_.train.global_batch, e.tokens.rows(),
                           world_.rank, world_.size);
    const size_t passes = needs_equal_passes(config_.parallel.shard)
                              ? most_micros(config_.train.global_batch)
                              : mine.size();
    const Abandonment::Work work(*abandonment_);
    const auto begin = Clock::now();
    for (size_t i = 0; i < passes; ++i) {
      if (auto s = may_go_on(i, passes, begin); !s) return forward(s);
      const bool idle = i >= mine.size();
      auto batch = idle ? feeder_->blank() : feeder_->training(mine[i]);
      if (!batch) return forward(batch);
      if (!idle) {
        auto s = ledger_.add(step_ + 1, mine[i].first, feeder_->samples());
        if (!s) return forward(s);
      }
      e.ops->fill(*e.stream, e.totals, 0.0);
      e.shard->begin_micro(*e.stream, i + 1 == passes);
      {
        const Traced traced(e.trace.get(), "step", "forward");
        e.model->forward(ctx, *batch, *e.shard);
      }
      const Traced traced(e.trace.get(), "step", "backward");
      e.model->backward(ctx, *batch, *e.shard);
      if (!idle) keep_sums(mine[i].first - position_.samples);
    }
    if (passes == 0) e.shard->no_micro(*e.stream);
    if (world_.size > 1) tell("reduce");
    return sum_up(stop_.asked(), saving_.must_end());
  }

  // Of the rank that has the most, of so many samples.
  size_t most_micros(int64_t samples) const {
    const int64_t all = engine_.tokens.rows() * world_.size;
    return static_cast<size_t>((samples + all - 1) / all);
  }

  // Sums over the batches to come, which have `samples` samples in all, on all ranks.
  void clear_sums(int64_t samples) {
    const int64_t micro = engine_.tokens.rows();
    batches_ = static_cast<size_t>((samples + micro - 1) / micro);
    sums_.assign(2 * batches_ + 2, 0.0);
  }
  // Loss and count of the batch of which this is the first sample.
  void keep_sums(uint64_t sample) {
    const size_t i = sample / static_cast<uint64_t>(engine_.tokens.rows());
    const auto keep = [&](double& x, int64_t which) {
      engine_.device->download(*engine_.stream, View(&x, DType::f64, {1}),
                               engine_.totals.slice(which, 1));
    };
    keep(sums_[i], 0);
    keep(sums_[batches_ + i], 1);
  }

  // Each batch is one rank's, so that adding up over the ranks changes no bit of it.
  Result<Sums> sum_up(bool stop, bool end) {
    if (auto s = engine_.stream->record().wait(deadline()); !s) return forward(s);
    sums_[2 * batches_] = stop ? 1.0 : 0.0;
    sums_[2 * batches_ + 1] = end ? 1.0 : 0.0;
    if (auto s = engine_.comm->all_sum(sums_, deadline()); !s) return forward(s);
    const std::span<const double> all(sums_);
    return Sums{sum_as_tree(all.first(batches_)), sum_as_tree(all.subspan(batches_, batches_)),
                sums_[2 * batches_], sums_[2 * batches_ + 1]};
  }

  // Evaluation --------------------------------------------------------------------------------

  Status evaluate() {
    tell("evaluate");
    auto loss = validation_loss();
    if (!loss) return in_step(std::move(loss.error()));
    say("step " + std::to_string(step_) + "/" + std::to_string(last_step()) + "  validation loss " +
        fixed(*loss, 4));
    if (speaks()) note(metrics_.add_validation(step_, *loss));
    return {};
  }

  Result<double> validation_loss() {
    Engine& e = engine_;
    Ctx ctx = e.context();
    const auto samples = static_cast<int64_t>(feeder_->evaluated());
    clear_sums(samples);
    const auto mine = deal(0, samples, e.tokens.rows(), world_.rank, world_.size);
    // Every rank runs as many passes as the one with the most: a pass may be a collective.
    const size_t passes = most_micros(samples);
    const Abandonment::Work work(*abandonment_);
    const auto begin = Clock::now();
    for (size_t i = 0; i < passes; ++i) {
      if (auto s = may_go_on(i, passes, begin); !s) return forward(s);
      const bool idle = i >= mine.size();
      auto batch = idle ? feeder_->blank() : feeder_->validation(mine[i]);
      if (!batch) return forward(batch);
      e.ops->fill(*e.stream, e.totals, 0.0);
      e.model->evaluate(ctx, *batch, *e.shard);
      if (!idle) keep_sums(mine[i].first);
    }
    auto sums = sum_up(false, false);
    if (!sums) return forward(sums);
    return sums->mean();
  }

  // Saving ------------------------------------------------------------------------------------

  void save(const Writer::How& how) {
    tell("save");
    saving_.begin(engine_,
                  {step_, position_.samples, engine_.shard->updates(), guard_.state(),
                   text_->digest(), settings_of(config_)},
                  how);
  }

  Status stop_early() {
    (void)saving_.finish();  // which may be of this very step
    if (saving_.durable() != step_) save({{}, /*hurry=*/true});
    if (auto s = saving_.finish(); !s) return s;
    return stopped_early();
  }
  Status stopped_early() const {
    return fail("stopped early at step " + std::to_string(step_) + " with a durable checkpoint",
                exit_code::requeue);
  }

  // Saying ------------------------------------------------------------------------------------

  void log(StepRecord record) {
    if (!speaks()) return;
    say(progress_->line(record));
    note(metrics_.add(record));
  }

  // What is worth a line and no more.
  void note(const Status& s) const {
    if (!s) say("warning: " + s.error().what);
  }

  Status write_trace() const {
    if (config_.trace.empty() || !engine_.trace) return {};
    return engine_.trace->write(trace_file());
  }

  const RunConfig& config_;
  WorkerControl& control_;
  const World& world_;
  const Schedule schedule_;
  StopRequest stop_;  // before the engine, which starts threads
  std::unique_ptr<Text> text_;
  Engine engine_;
  std::optional<Feeder> feeder_;
  std::optional<Abandonment> abandonment_;
  StepGuard guard_;
  Saving saving_;    // after the engine, whose memory it copies
  Metrics metrics_;  // rank 0
  std::optional<Progress> progress_;
  SampleLedger ledger_;

  std::optional<uint64_t> chosen_;  // the step of resume=STEP
  uint64_t step_ = 0;               // done
  Position position_;
  size_t batches_ = 0;        // that sums_ is about
  std::vector<double> sums_;  // the loss of each, the tokens of each, then Sums' stop and end
};

}  // namespace

Status train(const RunConfig& config, WorkerControl& control) { return Run(config, control).go(); }

}  // namespace trainlaunch
