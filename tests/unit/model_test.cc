#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "model/model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "gpt_reference.h"

using namespace trainlaunch;
using namespace trainlaunch::test;

namespace {

// Whole weights and gradients of any type in host memory, with a record of how they are used.
class TestShard final : public Shard {
 public:
  TestShard(std::span<const ParamSpec> specs, DType t) : specs_(specs.begin(), specs.end()) {
    auto device = make_host_device();
    Arena measure = Arena::measuring();
    take(measure, t);
    auto arena = Arena::make(*device, measure.used());
    REQUIRE(arena);
    arena_ = std::move(*arena);
    take(arena_, t);
    contributions.assign(specs_.size(), 0);
    forget_gradients();
  }

  // Sums begin anew, in memory that holds anything.
  void forget_gradients() {
    begun_.assign(specs_.size(), false);
    for (const View& g : gradients_)
      for (int64_t i = 0; i < g.size(); ++i) put(g, i, std::numeric_limits<double>::quiet_NaN());
  }

  void set(int param, const std::vector<double>& values) {
    REQUIRE(static_cast<int64_t>(values.size()) == weights_[param].size());
    for (int64_t i = 0; i < weights_[param].size(); ++i) put(weights_[param], i, values[i]);
  }
  void nudge(int param, int64_t i, double by) { weights_[param].as<double>()[i] += by; }
  std::vector<double> gradient(int param) const {
    const View g = gradients_[param];
    std::vector<double> out(g.size());
    for (int64_t i = 0; i < g.size(); ++i) {
      out[i] = g.t == DType::f64 ? g.as<double>()[i] : g.as<float>()[i];
    }
    return out;
  }

  void acquire(Stream&, int block) override { held_.insert(block); }
  void release(Stream&, int block) override { held_.erase(held_.find(block)); }
  View weight(int param) override {
    CHECK_MESSAGE(held_.count(specs_[param].block) > 0, specs_[param].name);
    return weights_[param];
  }
  View grad(int param) override {
    const GradientSum sum = grad_sum(param);
    for (int64_t i = 0; !sum.begun && i < sum.to.size(); ++i) put(sum.to, i, 0);
    return sum.to;
  }
  GradientSum grad_sum(int param) override {
    const bool begun = begun_[param];
    begun_[param] = true;
    return {gradients_[param], begun};
  }
  void ready(Stream&, int param) override {
    if (++contributions[param] == specs_[param].contributions) completed.push_back(param);
  }
  void begin_step(Stream&) override {}
  void begin_micro(Stream&, bool) override {
    contributions.assign(specs_.size(), 0);
    completed.clear();
  }
  void no_micro(Stream&) override {}
  Result<StepStats> step(Stream&, const StepScalars&) override { return StepStats{}; }
  std::vector<Piece> owned() const override { return {}; }
  std::vector<Piece> wanted() const override { return {}; }
  Status spread(Stream&) override { return {}; }
  uint64_t updates() const override { return 0; }
  void set_updates(uint64_t) override {}
  int64_t bucket_bytes() const override { return 0; }

  bool nothing_held() const { return held_.empty(); }
  std::vector<int> contributions;  // by parameter
  std::vector<int> completed;      // parameters in the order of their last contribution

 private:
  void take(Arena& arena, DType t) {
    weights_.clear();
    gradients_.clear();
    for (const ParamSpec& s : specs_) {
      for (auto* views : {&weights_, &gradients_}) {
        views->push_back(s.shape.size() == 1 ? arena.take("w", t, {s.shape[0]})
                                             : arena.take("w", t, {s.shape[0], s.shape[1]}));
      }
    }
  }
  static void put(View v, int64_t i, double x) {
    if (v.t == DType::f64)
      v.as<double>()[i] = x;
    else
      v.as<float>()[i] = static_cast<float>(x);
  }

  std::vector<ParamSpec> specs_;
  Arena arena_;
  std::vector<View> weights_, gradients_;
  std::vector<bool> begun_;  // by parameter
  std::multiset<int> held_;
};

// A model with its memory, ready to run.
struct Runner {
  Runner(const GptConfig& config, std::unique_ptr<Ops> operations, const ReserveFor& what)
      : ops(std::move(operations)), device(make_host_device()) {
    auto made = make_gpt(config);
    REQUIRE(made);
    model = std::move(*made);
    stream = std::move(*device->stream());
    Arena measure = Arena::measuring();
    take(measure, what);
    bytes = measure.used();
    auto real = Arena::make(*device, bytes);
    REQUIRE(real);
    arena = std::move(*real);
    take(arena, what);
    shard = std::make_unique<TestShard>(model->params(), ops->dtype());
    for (int p = 0; p < static_cast<int>(model->params().size()); ++p) {
      shard->set(p, reference_weight(model->params(), p));
    }
  }

  void take(Arena& a, const ReserveFor& what) {
    model->reserve(a, *ops, what);
    ops->use_scratch(a.take("scratch", DType::u8,
                            {static_cast<int64_t>(ops->scratch_bytes(model->limits(what.shape)))}));
  }
  Ctx ctx() {
    return {*ops, *stream, View(&loss, DType::f64, {1}), View(&count, DType::f64, {1}), nullptr};
  }
  double evaluate(const Batch& batch) {
    loss = count = 0;
    Ctx c = ctx();
    model->evaluate(c, batch, *shard);
    return loss;
  }
  void train(const Batch& batch) {
    Ctx c = ctx();
    shard->begin_micro(*stream, true);
    model->forward(c, batch, *shard);
    model->backward(c, batch, *shard);
  }
  // Logits after the last of these tokens of a sequence of which `first` have been seen.
  std::vector<double> extend(View tokens, int64_t first, int64_t vocab) {
    std::vector<double> logits(vocab);
    std::vector<float> f32(vocab);
    Ctx c = ctx();
    const bool wide = ops->dtype() == DType::f64;
    model->extend(
        c, tokens, first,
        wide ? View(logits.data(), DType::f64, {vocab}) : View(f32.data(), DType::f32, {vocab}),
        *shard);
    if (!wide) std::copy(f32.begin(), f32.end(), logits.begin());
    return logits;
  }

  std::unique_ptr<Ops> ops;
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Model> model;
  std::unique_ptr<TestShard> shard;
  Arena arena;
  size_t bytes = 0;
  double loss = 0, count = 0;
};

void check_against_pytorch(const std::function<std::unique_ptr<Ops>()>& make_ops,
                           double tolerance) {
  const auto& expected = reference();
  HostBatch batch = reference_batch();
  Runner r(reference_config(), make_ops(), {{batch.sequences, batch.context}});
  const double loss = expected["loss"];

  CHECK(std::abs(r.evaluate(batch.all()) - loss) <= tolerance * loss);
  r.loss = r.count = 0;
  r.train(batch.all());
  CHECK(std::abs(r.loss - loss) <= tolerance * loss);
  CHECK(r.count == expected["count"].get<double>());
  const auto params = r.model->params();
  CHECK(params.size() == expected["gradients"].size());
  for (int p = 0; p < static_cast<int>(params.size()); ++p) {
    REQUIRE(expected["gradients"].contains(params[p].hf));
    check_summary(params[p].hf, r.shard->gradient(p), expected["gradients"][params[p].hf],
                  tolerance);
  }

  // The first sequence at once, and token by token.
  const auto& logits = expected["logits"];
  const int64_t position = logits["position"],
                vocab = static_cast<int64_t>(logits["values"].size());
  Runner g(reference_config(), make_ops(), {{1, batch.context}, Use::generation});
  const auto tokens = [&](int64_t from, int64_t to) {
    return batch.all().tokens.slice(from, to - from).reshape({1, to - from});
  };
  std::vector<std::vector<double>> got{g.extend(tokens(0, position + 1), 0, vocab)};
  for (int64_t i = 0; i < position; ++i) g.extend(tokens(i, i + 1), i, vocab);
  got.push_back(g.extend(tokens(position, position + 1), position, vocab));
  g.extend(tokens(0, 2), 0, vocab);
  got.push_back(g.extend(tokens(2, position + 1), 2, vocab));
  CHECK(g.shard->nothing_held());
  for (const std::vector<double>& values : got)
    for (int64_t i = 0; i < vocab; ++i)
      CHECK(std::abs(values[i] - logits["values"][i].get<double>()) <= tolerance * 10);
}

ParamSpec spec(std::string name, std::vector<int64_t> shape, Init init = {}, int uses = 1) {
  return {std::move(name), "", std::move(shape), init, Group::decay, 0, uses};
}

const GptConfig tiny{2, 2, 8, 5, 11};

}  // namespace

TEST_CASE("the layout: whole tiles, no overlap, last used first, used twice last") {
  const std::vector<ParamSpec> specs = {spec("tied", {3000}, {}, 2), spec("one", {1}),
                                        spec("tile", {32, 32}), spec("more", {1025})};
  const Layout layout = Layout::plan(specs);
  std::vector<int> order;
  int64_t tiles = 0;
  for (const Layout::Entry& e : layout.entries) {
    order.push_back(e.param);
    CHECK(e.offset == tiles * Layout::tile);
    CHECK(e.size == specs[e.param].size());
    CHECK(e.tiles * Layout::tile >= e.size);
    CHECK((e.tiles - 1) * Layout::tile < e.size);
    CHECK(&layout.of(e.param) == &e);
    tiles += e.tiles;
  }
  CHECK(order == std::vector<int>{3, 2, 1, 0});
  CHECK(layout.tiles == tiles);
  CHECK(layout.tiles == 2 + 1 + 1 + 3);
  CHECK(Layout::plan({}).elements() == 0);
}

TEST_CASE("initial weights are normal numbers of the stated deviation") {
  const int64_t n = 200000;
  const std::vector<ParamSpec> specs = {spec("a", {n}, {Init::normal, 0.5f}),
                                        spec("b", {n}, {Init::normal, 0.02f}),
                                        spec("ones", {10}, {Init::one, 0}), spec("zeros", {10})};
  const Layout layout = Layout::plan(specs);
  std::vector<float> flat(layout.elements(), 7.0f);
  initialise(specs, layout, 42, View(flat.data(), DType::f32, {layout.elements()}));
  auto moments = [&](int param, double stddev) {
    const float* w = flat.data() + layout.of(param).offset;
    double m[5] = {};
    for (int64_t i = 0; i < n; ++i) {
      for (int k = 1; k < 5; ++k) m[k] += std::pow(w[i] / stddev, k) / n;
    }
    // Five standard errors of the moments of a normal distribution.
    const double error = 5 / std::sqrt(static_cast<double>(n));
    CHECK(std::abs(m[1]) < error);
    CHECK(std::abs(m[2] - 1) < error * std::sqrt(2.0));
    CHECK(std::abs(m[3]) < error * std::sqrt(15.0));
    CHECK(std::abs(m[4] - 3) < error * std::sqrt(96.0));
  };
  moments(0, 0.5);
  moments(1, 0.02);

  double product = 0, neighbours = 0;
  const float *a = flat.data() + layout.of(0).offset, *b = flat.data() + layout.of(1).offset;
  for (int64_t i = 0; i < n; ++i) product += (a[i] / 0.5) * (b[i] / 0.02) / n;
  for (int64_t i = 1; i < n; ++i) neighbours += (a[i - 1] / 0.5) * (a[i] / 0.5) / n;
  CHECK(std::abs(product) < 5 / std::sqrt(static_cast<double>(n)));
  CHECK(std::abs(neighbours) < 5 / std::sqrt(static_cast<double>(n)));

  const Layout::Entry &ones = layout.of(2), &zeros = layout.of(3);
  for (int64_t i = 0; i < Layout::tile; ++i) {
    CHECK(flat[ones.offset + i] == (i < 10 ? 1.0f : 0.0f));
    CHECK(flat[zeros.offset + i] == 0.0f);
  }
  for (int64_t i = n; i < layout.of(0).tiles * Layout::tile; ++i) {
    CHECK(flat[layout.of(0).offset + i] == 0.0f);
  }
}

TEST_CASE("initial weights depend on seed and name, not on what else is there") {
  auto weights = [](const std::vector<ParamSpec>& specs, int param, uint64_t seed) {
    const Layout layout = Layout::plan(specs);
    std::vector<float> flat(layout.elements());
    initialise(specs, layout, seed, View(flat.data(), DType::f32, {layout.elements()}));
    const auto first = flat.begin() + layout.of(param).offset;
    return std::vector<float>(first, first + layout.of(param).size);
  };
  const Init normal{Init::normal, 1.0f};
  const auto alone = weights({spec("w", {1003}, normal)}, 0, 1);
  CHECK(weights({spec("other", {77}, normal), spec("w", {1003}, normal)}, 1, 1) == alone);
  CHECK(weights({spec("w", {1003}, normal)}, 0, 2) != alone);
  CHECK(weights({spec("x", {1003}, normal)}, 0, 1) != alone);
  // A larger tensor begins with the same numbers.
  auto longer = weights({spec("w", {2000}, normal)}, 0, 1);
  longer.resize(alone.size());
  CHECK(longer == alone);
}

TEST_CASE("GPT-2's parameters") {
  auto model = make_gpt({12, 12, 768, 1024, 50257});
  REQUIRE(model);
  int64_t n = 0;
  std::set<std::string> names;
  for (const ParamSpec& s : (*model)->params()) {
    n += s.size();
    names.insert(s.name);
    CHECK((s.group == Group::decay) == (s.shape.size() == 2));
    if (s.hf.ends_with("c_proj.weight"))
      CHECK(s.init.stddev == doctest::Approx(0.02 / std::sqrt(24.0)));
    else if (s.shape.size() == 2)
      CHECK(s.init.stddev == 0.02f);
  }
  // The published sizes: 124,439,808 parameters in 148 tensors.
  CHECK(n == 124439808);
  CHECK(names.size() == 148);
  CHECK((*model)->flops_per_token() == 6.0 * 124439808 + 6.0 * 12 * 768 * 1024);
}

TEST_CASE("shapes that do not fit are refused by the option's name") {
  auto refused = [](const GptConfig& c, const std::string& option) {
    auto r = make_gpt(c);
    REQUIRE_FALSE(r);
    CHECK(r.error().exit == exit_code::usage);
    CHECK_MESSAGE(r.error().what.find(option) == 0, r.error().what);
  };
  refused({0, 2, 8, 5, 11}, "model.layers");
  refused({2, 3, 8, 5, 11}, "model.heads");
  refused({2, 0, 8, 5, 11}, "model.heads");
  refused({2, 2, 0, 5, 11}, "model.width");
  refused({2, 2, 8, -1, 11}, "model.context");
  refused({2, 2, 8, int64_t{1} << 40, 11}, "model.context");
  refused({2, 2, 8, 5, 0}, "model.vocab");
  CHECK(make_gpt(tiny));
}

TEST_CASE("f64 reference operations: loss, gradients and logits are PyTorch's") {
  check_against_pytorch(make_reference_ops, 1e-10);
}

TEST_CASE("f32 CPU operations: loss, gradients and logits are PyTorch's") {
  check_against_pytorch([] { return make_cpu_ops(1); }, 1e-5);
  check_against_pytorch([] { return make_cpu_ops(2); }, 1e-5);
}

TEST_CASE("the whole model's gradient is the slope of its loss") {
  HostBatch batch = noise_batch(2, tiny.context, tiny.vocab);
  Runner r(tiny, make_reference_ops(), {{2, tiny.context}});
  r.train(batch.all());
  const double h = 1e-5;
  for (int p = 0; p < static_cast<int>(r.model->params().size()); ++p) {
    const std::vector<double> gradient = r.shard->gradient(p);
    double largest = 0;
    for (int64_t i = 0; i < static_cast<int64_t>(gradient.size()); ++i) {
      r.shard->nudge(p, i, h);
      const double above = r.evaluate(batch.all());
      r.shard->nudge(p, i, -2 * h);
      const double below = r.evaluate(batch.all());
      r.shard->nudge(p, i, h);
      largest = std::max(largest, std::abs((above - below) / (2 * h) - gradient[i]));
    }
    CHECK_MESSAGE(largest < 1e-7, r.model->params()[p].name);
  }
}

TEST_CASE("gradients of micro-batches add up to those of the batch") {
  HostBatch batch = reference_batch();
  const BatchShape shape{batch.sequences, batch.context};
  Runner whole(reference_config(), make_reference_ops(), {shape});
  Runner parts(reference_config(), make_reference_ops(), {shape});
  whole.train(batch.all());
  parts.train(batch.part(0, 2));
  parts.train(batch.part(2, 1));
  CHECK(parts.loss == doctest::Approx(whole.loss).epsilon(1e-12));
  CHECK(parts.count == whole.count);
  for (int p = 0; p < static_cast<int>(whole.model->params().size()); ++p) {
    const auto a = whole.shard->gradient(p), b = parts.shard->gradient(p);
    double largest = 0;
    for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
    CHECK_MESSAGE(largest < 1e-12, whole.model->params()[p].name);
  }
}

TEST_CASE("gradients become ready once each, in the layout's order of blocks") {
  HostBatch batch = noise_batch(1, tiny.context, tiny.vocab);
  Runner r(tiny, make_reference_ops(), {{1, tiny.context}});
  r.train(batch.all());
  CHECK(r.shard->nothing_held());
  const auto params = r.model->params();
  for (size_t p = 0; p < params.size(); ++p) {
    CHECK(r.shard->contributions[p] == params[p].contributions);
  }
  REQUIRE(r.shard->completed.size() == params.size());
  const Layout layout = Layout::plan(params);
  for (size_t i = 0; i < params.size(); ++i) {
    CHECK(params[r.shard->completed[i]].block == params[layout.entries[i].param].block);
  }
  CHECK(params[r.shard->completed.back()].hf == "transformer.wte.weight");
}

TEST_CASE("memory without a backward pass is less, and gives the same loss and logits") {
  HostBatch batch = reference_batch();
  const GptConfig config = reference_config();
  const BatchShape shape{batch.sequences, batch.context};
  Runner training(config, make_reference_ops(), {shape});
  Runner generating(config, make_reference_ops(), {shape, Use::generation});
  Runner small(config, make_reference_ops(), {shape, Use::evaluation});
  CHECK(small.bytes < training.bytes / 2);
  CHECK(small.bytes < generating.bytes);
  CHECK(generating.bytes < training.bytes);
  for (const Runner* r : {&training, &generating, &small}) CHECK(r->arena.used() == r->bytes);
  CHECK(small.evaluate(batch.all()) == training.evaluate(batch.all()));
  CHECK(small.loss == generating.evaluate(batch.all()));
  CHECK(small.shard->nothing_held());

  const View tokens = batch.all().tokens.slice(0, 6).reshape({1, 6});
  CHECK(generating.extend(tokens, 0, config.vocab) == training.extend(tokens, 0, config.vocab));
}

TEST_CASE("recomputation: less memory, the same bits") {
  HostBatch batch = noise_batch(3, 16, 64);
  const GptConfig config{4, 2, 32, 16, 64};
  const BatchShape shape{batch.sequences, batch.context};
  Runner plain(config, make_cpu_ops(1), {shape});
  Runner again(config, make_cpu_ops(1), {shape, Use::training, Recompute::block});
  const auto activations = [](const Runner& r) {
    const auto& items = r.arena.items();
    return std::find_if(items.begin(), items.end(),
                        [](const Arena::Item& i) { return i.what == "activations"; })
        ->bytes;
  };
  CHECK(activations(again) < activations(plain) / 2);
  CHECK(again.arena.used() == again.bytes);
  for (Runner* r : {&plain, &again}) {
    r->train(batch.part(0, 2));
    r->evaluate(batch.all());
    r->train(batch.part(1, 2));
    CHECK(r->shard->nothing_held());
  }
  CHECK(again.loss == plain.loss);
  for (int p = 0; p < static_cast<int>(plain.model->params().size()); ++p)
    CHECK(again.shard->gradient(p) == plain.shard->gradient(p));
}
