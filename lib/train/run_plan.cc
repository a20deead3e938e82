#include "train/run_plan.h"

#include <algorithm>
#include <numeric>

#include "data/data.h"
#include "optim/plan.h"
#include "train/describe.h"
#include "train/engine.h"
#include "train/words.h"

namespace trainlaunch {

namespace {

constexpr double gibibyte = 1 << 30;
// Heap, stacks, and code that is not touched before a run begins: as measured, of any run.
constexpr uint64_t everything_else = uint64_t{8} << 20;
constexpr double shared_memory = 10e9;  // bytes a second between ranks of a node: assumed

// With recomputation the forward pass of all layers but the last comes twice, without the product
// at the end of each. A third of a layer's arithmetic is forward.
double arithmetic_per_token(const RunConfig& config, const Model& model) {
  const double flops = model.flops_per_token();
  if (config.train.recompute == Recompute::none) return flops;
  const double layers = config.model.layers, width = config.model.width;
  const double head = 6.0 * static_cast<double>(Text::vocab) * width;
  const double last_products = 8 * width * width * layers;
  return flops + ((flops - head) / 3 - last_products) * (layers - 1) / layers;
}

// The node of each rank.
std::vector<int> nodes_of(const Site& site) {
  std::vector<int> nodes;
  for (int node = 0; node < site.nodes; ++node)
    nodes.insert(nodes.end(), site.ranks / site.nodes + (node < site.ranks % site.nodes), node);
  return nodes;
}

// Of the rank with most to do.
int64_t passes_of(const RunConfig& config, int64_t micro, int ranks) {
  const int64_t all = (config.train.global_batch + micro - 1) / micro;
  return (all + ranks - 1) / ranks;
}

// What a rank notes of its samples: those of one micro-batch with their tokens and targets, the
// micro-batches of its own (Micro), and the loss and count of each micro-batch of all.
uint64_t lists_of(const RunConfig& config, int ranks) {
  const int64_t micro = micro_batch(config, ranks);
  const int64_t all = (config.train.global_batch + micro - 1) / micro;
  return static_cast<uint64_t>(micro * 8 * (config.model.context + 1) +
                               passes_of(config, micro, ranks) * sizeof(Micro) + all * 16);
}

// Blocks of the host's memory end within a huge page, all of which is theirs.
uint64_t rest_of_huge_page(uint64_t block) {
  constexpr uint64_t page = uint64_t{2} << 20;
  return block == 0 ? 0 : (page - block % page) % page;
}

std::string seconds(double s) { return s < 1 ? fixed(s * 1e3, 1) + " ms" : fixed(s, 2) + " s"; }

std::string flops_text(double flops) {
  if (flops < 1e9) return fixed(flops / 1e6, 1) + " MFLOP";
  return flops < 1e12 ? fixed(flops / 1e9, 2) + " GFLOP" : fixed(flops / 1e12, 2) + " TFLOP";
}

std::string item_line(const std::string& what, uint64_t bytes) {
  std::string line = "  " + what;
  line.resize(std::max<size_t>(line.size(), 34), ' ');
  const std::string number = binary_size(bytes);
  return line + std::string(number.size() < 14 ? 14 - number.size() : 1, ' ') + number;
}

// How long a step takes whose arithmetic runs at the ceiling.
struct Time {
  double arithmetic = 0, network = 0, shared = 0;
  // Gradients travel while the backward pass goes on, which is two thirds of the arithmetic.
  double shown() const { return std::max(0.0, network + shared - arithmetic * 2 / 3); }
  double all() const { return arithmetic + shown(); }
};

}  // namespace

uint64_t MemoryNeed::total() const {
  return std::accumulate(items.begin(), items.end(), uint64_t{0},
                         [](uint64_t sum, const Item& i) { return sum + i.bytes; });
}

Places places_of(const RunConfig& config, std::span<const int> node_of) {
  Places places{
      {}, config.deterministic == Deterministic::canonical ? SumOrder::tree : SumOrder::nodes};
  for (size_t r = 0; r < node_of.size(); ++r)
    if (r == 0 || node_of[r] != node_of[r - 1]) places.first.push_back(static_cast<int>(r));
  places.first.push_back(static_cast<int>(node_of.size()));
  return places;
}

Result<MemoryNeed> memory_need(const RunConfig& config, int rank, const Places& places, int threads,
                               uint64_t program) {
  const int ranks = places.ranks();
  auto e = make_planned_engine(config, ranks, threads);
  if (!e) return forward(e);
  const ShardOptions options = shard_options(config);
  const ShardSetup setup{options, e->model->params(), e->layout, e->ops->dtype()};
  const MemoryPlan shard = memory_of(setup, rank, ranks);
  // Every form saves the weights and the optimizer's state of a rank's own tiles, in f32.
  ShardOptions own_only = options;
  own_only.policy = ShardPolicy::optimizer;
  const uint64_t own = memory_of({own_only, setup.specs, setup.layout}, rank, ranks).optimizer / 2;

  MemoryNeed need;
  need.on_host = e->device->host_readable();
  const auto add = [&](const std::string& what, uint64_t bytes) {
    if (bytes > 0) need.items.push_back({what, bytes});
  };
  add("program and libraries", program);
  add("weights", shard.weights);
  add("master weights", shard.masters);
  add("gradients", shard.gradients);
  add("optimizer state", shard.optimizer);
  add("buffers of the sharding", shard.buffers);
  add("partial sums from other nodes", memory_for_sums(setup, rank, places));
  for (const Arena::Item& item : e->arena.items()) add(item.what, item.bytes);
  add("lists of samples", lists_of(config, ranks));
  add("copy for checkpoints", 3 * own);
  add("heap, stacks, more code", everything_else);

  if (!need.on_host || !huge_pages()) return need;
  const uint64_t kept =
      shard.masters + shard.optimizer + (needs_equal_passes(options.policy) ? shard.gradients : 0);
  uint64_t rest =
      rest_of_huge_page(kept) + rest_of_huge_page(e->arena.used()) + rest_of_huge_page(3 * own);
  // What ranks share is in small pages.
  if (ranks == 1)
    for (const uint64_t block : {shard.weights, shard.gradients, shard.buffers})
      rest += rest_of_huge_page(block);
  add("rest of the last huge pages", rest);
  return need;
}

Status check_memory(const RunConfig& config, const MemoryNeed& need, const Allowance& allowed) {
  if (!need.on_host && config.memory == 0) return {};
  uint64_t wanted = need.total();
  if (config.memory == 0 && !need.items.empty()) wanted -= need.items.front().bytes;
  if (wanted <= allowed.bytes) return {};
  return fail("a rank needs " + binary_size(wanted) + ", and " +
                  binary_size(wanted - allowed.bytes) + " of that are missing: it may use " +
                  binary_size(allowed.bytes) + " (" + allowed.limit +
                  "); smaller: train.micro-batch, train.recompute=block, "
                  "parallel.shard, more ranks",
              exit_code::usage);
}

Allowance allowance(const RunConfig& config, int ranks_of_node) {
  if (config.memory > 0)
    return Allowance{static_cast<uint64_t>(config.memory * gibibyte),
                     "memory of the configuration"};
  return allowed_memory(ranks_of_node);
}

Result<RunPlan> plan_run(const RunConfig& config, const Site& site) {
  if (site.nodes > site.ranks)
    return fail("--nodes=" + std::to_string(site.nodes) + ", but --ranks=" +
                    std::to_string(site.ranks) + ": each node has a rank at least",
                exit_code::usage);
  constexpr int most_of_node = 4096;
  if ((site.ranks - 1) / site.nodes >= most_of_node)
    return fail("--ranks=" + std::to_string(site.ranks) +
                    " on --nodes=" + std::to_string(site.nodes) + ": more than " +
                    std::to_string(most_of_node) + " on a node",
                exit_code::usage);
  if (auto s = check_batches(config, site.ranks); !s) return forward(s);
  const uint64_t program = resident_share();
  const Places places = places_of(config, nodes_of(site));
  const int of_node = places.first[1];  // ranks of the fullest node
  const Allowance allowed = allowance(config, of_node);
  const int threads = planned_threads(config, of_node);
  auto need = memory_need(config, 0, places, threads, program);
  if (!need) return forward(need);
  auto e = make_planned_engine(config, site.ranks, threads);
  if (!e) return forward(e);
  auto ceiling = measured_peak(*e->device, *e->stream, *e->ops, threads);
  if (!ceiling) return forward(ceiling);

  const ShardOptions options = shard_options(config);
  const ShardSetup setup{options, e->model->params(), e->layout, e->ops->dtype()};
  const int64_t micro = micro_batch(config, site.ranks);
  const int64_t passes = passes_of(config, micro, site.ranks);
  Moved node;  // of the fullest node's ranks together
  for (int r = 0; r < of_node; ++r) node += traffic_of(setup, r, places, passes);
  const double tokens =
      static_cast<double>(config.train.global_batch) * static_cast<double>(config.model.context);
  const double busiest = static_cast<double>(std::min(passes * micro, config.train.global_batch) *
                                             config.model.context);
  const double work = busiest * arithmetic_per_token(config, *e->model);
  Time time;
  time.arithmetic = work / ceiling->flops;
  time.network = static_cast<double>(std::max(node.sent, node.received)) / (site.network * 1e9);
  time.shared = static_cast<double>(node.shared) / shared_memory;

  RunPlan plan;
  auto& lines = plan.lines;
  lines.push_back("world       " + plural(static_cast<uint64_t>(site.ranks), "rank") + " on " +
                  plural(static_cast<uint64_t>(site.nodes), "node") + ", " +
                  plural(static_cast<uint64_t>(threads), "thread") + " a rank");
  lines.push_back(model_line(config.model, *e->model));
  lines.push_back("batch       " +
                  plural(static_cast<uint64_t>(config.train.global_batch), "sequence") +
                  " a step, in micro-batches of " + std::to_string(micro) + ": at most " +
                  std::to_string(passes) + " a rank");
  lines.push_back("memory      of a rank, parallel.shard=" + std::string(name_of(options.policy)));
  for (const MemoryNeed::Item& i : need->items) lines.push_back(item_line(i.what, i.bytes));
  lines.push_back(item_line("all", need->total()));
  if (need->on_host || config.memory > 0)
    lines.push_back("allowed     " + binary_size(allowed.bytes) + ": " + allowed.limit);
  lines.push_back("arithmetic  " + flops_text(e->model->flops_per_token()) + " a token, " +
                  flops_text(work) + " a step on the busiest rank");
  lines.push_back("ceiling     " + ceiling->name);
  if (site.ranks > 1)
    lines.push_back("wire        a node sends " + binary_size(node.sent) + " and receives " +
                    binary_size(node.received) + " a step; its ranks read " +
                    binary_size(node.shared) + " from each other");
  lines.push_back("step        " + seconds(time.all()) + ", " +
                  grouped(static_cast<uint64_t>(tokens / time.all())) +
                  " tokens/s, if all of it ran as "
                  "fast as products: " +
                  seconds(time.arithmetic) + " of arithmetic" +
                  (site.ranks > 1
                       ? ", and " + seconds(time.network + time.shared) +
                             " of communication, of which " + seconds(time.shown()) + " show"
                       : ""));
  if (site.ranks > 1)
    lines.push_back(
        "assumed     " +
        (site.nodes > 1 ? fixed(site.network, 1) + " GB/s of a node's network, " : std::string()) +
        fixed(shared_memory / 1e9, 0) +
        " GB/s between ranks of a node; nothing but the backward pass hides it");
  plan.fits = check_memory(config, *need, allowed);
  return plan;
}

}  // namespace trainlaunch
