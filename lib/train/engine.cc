#include "train/engine.h"

#include <algorithm>
#include <bit>
#include <latch>
#include <thread>

#include "base/processors.h"
#include "data/data.h"
#include "train/machine.h"
#include "train/words.h"

namespace trainlaunch {

namespace {

constexpr int64_t most_rows = 4096;  // of one forward pass, when the size is ours to choose
// Of any forward pass: far beyond any machine, and so small that no size overflows, whatever the
// model that make_gpt() allows.
constexpr int64_t far_too_many_rows = int64_t{1} << 28;

bool is_canonical(const RunConfig& config) {
  return config.deterministic == Deterministic::canonical;
}

// The processors this process may run on, one character each.
std::string allowed_cpus() {
  const ProcessorSet set = allowed_processors();
  if (set.none()) return "1";
  std::string mask;
  for (size_t cpu = 0; cpu < set.size(); ++cpu) mask += set[cpu] ? '1' : '0';
  mask.erase(mask.find_last_not_of('0') + 1);
  return mask;
}

bool overlap(const std::string& a, const std::string& b) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    if (a[i] == '1' && b[i] == '1') return true;
  return false;
}

// Ranks of a node that were not bound apart share its processors: each takes its part of them.
Result<int> fair_threads(Control& control, Deadline deadline) {
  auto masks = control.gather("threads: processors", allowed_cpus(), deadline);
  if (!masks) return forward(masks);
  const World& w = control.world();
  const std::string& mine = (*masks)[static_cast<size_t>(w.rank)];
  int sharers = 0;
  for (int r = 0; r < w.size; ++r)
    sharers += w.node_of[r] == w.node && overlap(mine, (*masks)[static_cast<size_t>(r)]);
  const auto cpus = static_cast<int>(std::count(mine.begin(), mine.end(), '1'));
  return std::max(1, cpus / std::max(1, sharers));
}

// For one sequence at a time: threads that have little to do wait for each other, mostly.
int useful_threads(const Layout& layout) {
  constexpr int64_t elements_a_thread = int64_t{16} << 20;
  const std::string cpus = allowed_cpus();
  const int64_t useful = 1 + layout.elements() / elements_a_thread;
  return static_cast<int>(std::min<int64_t>(useful, std::count(cpus.begin(), cpus.end(), '1')));
}

// All that a rank computes with besides its shard.
View take_memory(Engine& e, Arena& arena, const ReserveFor& what) {
  const BatchShape& shape = what.shape;
  e.model->reserve(arena, *e.ops, what);
  e.tokens = arena.take("batches", DType::i32, {shape.sequences, shape.context});
  e.targets = arena.take("batches", DType::i32, {shape.sequences, shape.context});
  e.totals = arena.take("losses", DType::f64, {2});
  if (what.use == Use::generation) {
    e.computed_logits = arena.take("logits", e.ops->dtype(), {Text::vocab});
    e.logits = arena.take("logits", DType::f32, {Text::vocab});
  }
  const size_t scratch = e.ops->scratch_bytes(e.model->limits(shape));
  return arena.take("scratch", DType::u8, {static_cast<int64_t>(scratch)});
}

Status make_arena(Engine& e, const ReserveFor& what) {
  View scratch;
  auto arena = Arena::fitting(*e.device, [&](Arena& a) { scratch = take_memory(e, a, what); });
  if (!arena) return forward(arena);
  e.arena = std::move(*arena);
  e.ops->use_scratch(scratch);
  return {};
}

ReserveFor training_memory(const RunConfig& config, int ranks) {
  return {
      {micro_batch(config, ranks), config.model.context}, Use::training, config.train.recompute};
}

// What both kinds of engine begin with.
Status make_model(Engine& e, const ModelConfig& config) {
  const GptConfig gpt{config.layers, config.heads, config.width, config.context, Text::vocab};
  auto model = make_gpt(gpt);
  if (!model) return forward(model);
  e.model = std::move(*model);
  e.layout = Layout::plan(e.model->params());
  return {};
}

// OpenMP's own way to say that it gets no thread is to end the process.
Status check_threads(int threads) {
  std::latch all(1);
  std::vector<std::jthread> some;
  Status made = caught([&]() -> Status {
    for (int i = 1; i < threads; ++i) some.emplace_back([&all] { all.wait(); });
    return {};
  });
  all.count_down();
  if (made) return {};
  return fail("no more than " + std::to_string(some.size() + 1) + " of " +
              plural(static_cast<uint64_t>(threads), "thread") +
              " can be had: the limit on processes (ulimit -u), the cgroup's pids.max or the "
              "memory is used up; raise it, or make train.threads smaller");
}

Status make_machine(Engine& e, const RunConfig& config, int threads, int local_rank = 0) {
  MachineWish wish;
  wish.device = config.device;
  wish.type = config.precision.compute;
  wish.local_rank = local_rank;
  wish.threads = threads;
  wish.bits = is_canonical(config) ? SameBits::any_threads : SameBits::same_threads;
  auto machine = make_machine(wish);
  if (!machine) return forward(machine);
  if (machine->device->host_readable())
    if (auto s = check_threads(threads); !s) return s;
  e.device = std::move(machine->device);
  e.ops = std::move(machine->ops);
  auto stream = e.device->stream();
  if (!stream) return forward(stream);
  e.stream = std::move(*stream);
  e.threads = threads;
  return {};
}

Status find_peaks(Engine& e, const RunConfig& config) {
  auto peak = known_peak(config.train.peak_tflops, *e.device, *e.ops);
  if (peak && !e.profile) {
    e.peak = std::move(*peak);
    return {};
  }
  auto measured = measured_peak(*e.device, *e.stream, *e.ops, e.threads);
  if (!measured) return forward(measured);
  e.ceiling = std::move(*measured);
  e.peak = peak ? std::move(*peak) : e.ceiling;
  return {};
}

}  // namespace

ShardOptions shard_options(const RunConfig& config) {
  const OptimConfig& o = config.optim;
  ShardOptions options;
  options.policy = config.parallel.shard;
  options.bucket_bytes = static_cast<int64_t>(config.parallel.bucket_mib * (1 << 20));
  options.micro_batches = config.train.micro_batches;
  options.wire = config.precision.wire;
  options.rule = {static_cast<float>(o.beta1),
                  static_cast<float>(o.beta2),
                  static_cast<float>(o.eps),
                  static_cast<float>(o.weight_decay),
                  config.precision.rounding == Rounding::stochastic,
                  config.train.seed};
  options.timeout = Seconds(config.train.deadline);
  return options;
}

Batch Engine::batch(int64_t sequences) const {
  const int64_t context = tokens.cols();
  auto rows = [&](View all) {
    return all.slice(0, sequences * context).reshape({sequences, context});
  };
  return {rows(tokens), rows(targets)};
}

namespace {

Status check_parts(const RunConfig& config, int ranks) {
  const LoopConfig& t = config.train;
  const int64_t n = t.micro_batches;
  const std::string name = "train.micro-batches=" + std::to_string(n);
  const auto wrong = [](const std::string& what) { return fail(what, exit_code::usage); };
  if (!is_canonical(config)) {
    if (n == 0) return {};
    return wrong(name +
                 " says nothing without deterministic=canonical; the size of a micro-batch "
                 "is train.micro-batch");
  }
  if (needs_equal_passes(config.parallel.shard))
    return wrong(std::string("parallel.shard=") + name_of(config.parallel.shard) +
                 " adds up in an order that depends on the ranks, which deterministic=canonical "
                 "rules out; use optimizer or none");
  if (config.precision.wire != DType::f32)
    return wrong(
        "precision.wire=bf16 rounds what travels between nodes, and deterministic=canonical "
        "promises the same bits wherever ranks are; use f32");
  if (n == 0)
    return wrong(
        "deterministic=canonical needs train.micro-batches: a power of two, as large as the "
        "largest "
        "number of ranks");
  if (!std::has_single_bit(static_cast<uint64_t>(n)))
    return wrong(name + " is no power of two, as deterministic=canonical needs it");
  if (t.global_batch % n != 0)
    return wrong(name + " does not divide train.global-batch=" + std::to_string(t.global_batch));
  if (t.micro_batch > 0 && t.micro_batch != t.global_batch / n)
    return wrong("train.micro-batch=" + std::to_string(t.micro_batch) + ", but " + name + " of " +
                 std::to_string(t.global_batch) + " sequences have " +
                 std::to_string(t.global_batch / n) + " each; leave one of the two out");
  if (ranks > n || !std::has_single_bit(static_cast<unsigned>(ranks)))
    return wrong("deterministic=canonical with " + name + " runs on 1, 2, 4, ... up to " +
                 std::to_string(n) + " ranks, not on " + std::to_string(ranks));
  return {};
}

}  // namespace

Status check_batches(const RunConfig& config, int ranks) {
  if (auto s = check_parts(config, ranks); !s) return s;
  const int64_t sequences = micro_batch(config, ranks);
  if (sequences <= far_too_many_rows / config.model.context) return {};
  return fail("a micro-batch of " + std::to_string(sequences) + " sequences of " +
                  std::to_string(config.model.context) + " bytes is more than the " +
                  std::to_string(far_too_many_rows) +
                  " bytes that one may have; make train.micro-batch smaller",
              exit_code::usage);
}

int planned_threads(const RunConfig& config, int ranks_of_node) {
  if (config.train.threads > 0) return config.train.threads;
  const std::string cpus = allowed_cpus();
  return std::max(1, static_cast<int>(std::count(cpus.begin(), cpus.end(), '1')) / ranks_of_node);
}

int64_t micro_batch(const RunConfig& config, int ranks) {
  const LoopConfig& t = config.train;
  if (is_canonical(config)) return t.global_batch / t.micro_batches;
  if (t.micro_batch > 0) return std::min(t.micro_batch, t.global_batch);
  const int64_t share = (t.global_batch + ranks - 1) / ranks;
  return std::clamp<int64_t>(most_rows / config.model.context, 1, share);
}

Result<int> threads_of_rank(const RunConfig& config, Control& control) {
  if (config.train.threads > 0) return config.train.threads;
  return fair_threads(control, Deadline::in(Seconds(config.train.deadline)));
}

Result<Engine> make_training_engine(const RunConfig& config, int threads, WorkerControl& control) {
  const World& world = control.world();
  const Seconds timeout(config.train.deadline);
  Engine e;
  if (!config.trace.empty() || config.profile)
    e.trace = std::make_unique<Trace>(
        world.rank, config.trace.empty() ? Trace::Keep::totals : Trace::Keep::spans);
  if (config.profile) e.profile = std::make_unique<Profile>(*e.trace);
  if (auto s = make_machine(e, config, threads, world.local_rank); !s) return forward(s);
  if (auto s = find_peaks(e, config); !s) return forward(s);
  if (e.profile) e.ops = profiled(std::move(e.ops), *e.profile);
  if (auto s = make_model(e, config.model); !s) return forward(s);

  CommOptions options;
  options.timeout = timeout;
  options.trace = e.trace.get();
  if (is_canonical(config)) options.order = SumOrder::tree;
  auto comm = make_comm_on(*e.device, *e.ops, control, control.local_sockets(), options);
  if (!comm) return forward(comm);
  e.comm = std::move(*comm);
  if (e.profile) e.comm = profiled(std::move(e.comm), *e.profile);

  if (auto s = make_arena(e, training_memory(config, world.size)); !s) return forward(s);
  ShardOptions sharding = shard_options(config);
  sharding.trace = e.trace.get();
  auto shard = make_shard(
      {*e.device, *e.ops, *e.comm, e.model->params(), e.layout, config.train.seed}, sharding);
  if (!shard) return forward(shard);
  e.shard = std::move(*shard);
  sharding.bucket_bytes = e.shard->bucket_bytes();
  e.shard_memory =
      memory_of({sharding, e.model->params(), e.layout, e.ops->dtype()}, world.rank, world.size);
  return e;
}

Result<Engine> make_planned_engine(const RunConfig& config, int ranks, int threads) {
  Engine e;
  if (auto s = make_machine(e, config, threads); !s) return forward(s);
  if (auto s = make_model(e, config.model); !s) return forward(s);
  take_memory(e, e.arena, training_memory(config, ranks));
  return e;
}

Result<Engine> make_frozen_engine(const RunConfig& config) {
  Engine e;
  if (auto s = make_model(e, config.model); !s) return forward(s);
  const int threads = config.train.threads > 0 ? config.train.threads : useful_threads(e.layout);
  if (auto s = make_machine(e, config, threads); !s) return forward(s);
  const std::unique_ptr<Control> alone = make_single_control();
  auto comm = make_comm_on(*e.device, *e.ops, *alone, {}, {});
  if (!comm) return forward(comm);
  e.comm = std::move(*comm);
  if (auto s = make_arena(e, {{1, config.model.context}, Use::generation}); !s) return forward(s);
  auto shard = make_frozen_shard(
      {*e.device, *e.ops, *e.comm, e.model->params(), e.layout, config.train.seed});
  if (!shard) return forward(shard);
  e.shard = std::move(*shard);
  return e;
}

}  // namespace trainlaunch
