#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "optim/optim.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "comm/kinds.h"
#include "gpt_reference.h"
#include "optim/buckets.h"
#include "ranks.h"
#include "trainer.h"

using namespace trainlaunch;
using namespace trainlaunch::test;

namespace {

// One rank of several that do not exist: it remembers what was issued and moves nothing.
class RecordingComm final : public Comm {
 public:
  struct Call {
    std::string what;
    void* where;
    int64_t size;
    bool operator==(const Call&) const = default;
  };

  RecordingComm(int rank, int size) : rank_(rank), size_(size) {}
  const char* name() const override { return "recording"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Result<View> alloc(std::string_view, DType t, int64_t count) override {
    auto block = device_->allocate(static_cast<size_t>(count) * bytes_of(t));
    if (!block) return forward(block);
    blocks_.push_back(std::move(*block));
    return View(blocks_.back()->data(), t, {count});
  }
  Ticket reduce_scatter(View v, const Owners&, DType, Event) override {
    calls.push_back({"reduce", v.p, v.size()});
    return calls.size();
  }
  Ticket all_reduce(View v, const Owners&, DType, Event) override {
    calls.push_back({"sum", v.p, v.size()});
    return calls.size();
  }
  Ticket all_gather(View v, const Owners&, Event) override {
    calls.push_back({"gather", v.p, v.size()});
    return calls.size();
  }
  Status wait(Ticket ticket, Deadline) override {
    waited.insert(ticket);
    if (broken) return fail("the network is gone");
    return {};
  }
  Status all_sum(std::span<double>, Deadline) override { return {}; }
  Status broadcast(View, int, Deadline) override { return {}; }
  Status barrier(Deadline) override { return {}; }
  void abort() noexcept override {}
  Moved moved() const override { return {}; }

  std::vector<Call> calls;  // ticket n is calls[n - 1]
  std::set<Ticket> waited;
  bool broken = false;

 private:
  int rank_, size_;
  std::unique_ptr<Device> device_ = make_host_device();
  std::vector<std::unique_ptr<Block>> blocks_;
};

}  // namespace

TEST_CASE("the schedule: linear warm-up, cosine, floor") {
  const Schedule s{1.0, 0.1, 10, 110};
  CHECK(s.at(0) == doctest::Approx(0.1));
  CHECK(s.at(4) == doctest::Approx(0.5));
  CHECK(s.at(9) == doctest::Approx(1.0));
  CHECK(s.at(10) == doctest::Approx(1.0));
  CHECK(s.at(35) == doctest::Approx(0.1 + 0.45 * (1 + std::sqrt(0.5))));
  CHECK(s.at(60) == doctest::Approx(0.55));
  CHECK(s.at(110) == doctest::Approx(0.1));
  CHECK(s.at(1000000) == doctest::Approx(0.1));
  CHECK(Schedule{1.0, 0.1, 0, 0}.at(0) == doctest::Approx(0.1));
  CHECK(Schedule{1.0, 0.1, 0, 4}.at(0) == doctest::Approx(1.0));
  CHECK(Schedule{1.0, 0.1, 10, 5}.at(7) == doctest::Approx(0.8));
}

TEST_CASE("buckets cover the layout in order, in whole parameters and tiles") {
  auto model = make_gpt({4, 4, 128, 64, 500});
  REQUIRE(model);
  const auto specs = (*model)->params();
  const Layout layout = Layout::plan(specs);
  for (const ShardPolicy policy : policies) {
    for (int64_t bytes : {int64_t{1}, int64_t{300000}, int64_t{25} << 20}) {
      for (int ranks : {1, 2, 3, 7}) {
        int next = 0;
        int64_t offset = 0;
        const auto buckets = plan_buckets(layout, specs, policy, bytes, ranks);
        for (const Bucket& b : buckets) {
          CHECK(b.first == next);
          CHECK(b.last > b.first);
          CHECK(b.offset == offset);
          const int64_t limit = &b == &buckets.front() ? std::min(bytes, int64_t{1} << 20) : bytes;
          CHECK((b.elements() * 4 <= limit || b.last == b.first + 1));
          REQUIRE(b.owners.begin.size() == static_cast<size_t>(ranks) + 1);
          const int64_t fair = b.elements() / Layout::tile / ranks;
          for (int r = 0; r < ranks; ++r) {
            CHECK(b.owners.offset(r) % Layout::tile == 0);
            const int64_t tiles = b.owners.count(r) / Layout::tile;
            CHECK((tiles == fair || tiles == fair + 1));
          }
          for (int i = b.first; i < b.last; ++i) {
            const ParamSpec &x = specs[layout.entries[b.first].param],
                            &y = specs[layout.entries[i].param];
            if (policy == ShardPolicy::full) CHECK(x.block == y.block);
            if (needs_equal_passes(policy)) CHECK((x.contributions > 1) == (y.contributions > 1));
          }
          next = b.last;
          offset += b.elements();
        }
        CHECK(next == static_cast<int>(layout.entries.size()));
        CHECK(offset == layout.elements());
      }
    }
  }
}

TEST_CASE("steps of AdamW with clipping are PyTorch's, in every form") {
  const auto& expected = reference()["training"];
  for (ShardPolicy policy : policies) {
    Trainer t(make_single_comm(), reference_options(policy));
    t.use_reference_weights();
    HostBatch batch = reference_batch();
    const StepScalars scalars = reference_scalars();
    for (size_t s = 0; s < expected["losses"].size(); ++s) {
      const StepStats stats = t.step({batch.all()}, scalars);
      CHECK_FALSE(stats.skipped);
      CHECK(t.loss() / scalars.tokens ==
            doctest::Approx(expected["losses"][s].get<double>()).epsilon(1e-5));
      CHECK(stats.grad_norm ==
            doctest::Approx(expected["grad_norms"][s].get<double>()).epsilon(1e-5));
    }
    CHECK(t.shard->updates() == expected["losses"].size());
    const auto params = t.model->params();
    for (int p = 0; p < static_cast<int>(params.size()); ++p) {
      check_summary(params[p].hf, t.weight(p), expected["weights"][params[p].hf], 2e-5);
    }
  }
}

TEST_CASE("all forms give the same bits on one rank, whatever the size of buckets") {
  Trainer a(make_single_comm(), reference_options(ShardPolicy::none));
  HostBatch batch = reference_batch();
  Saved x;
  std::vector<double> norms;
  for (int s = 0; s < 3; ++s) norms.push_back(a.step({batch.all()}, reference_scalars()).grad_norm);
  save(*a.shard, x);
  for (const ShardPolicy policy : policies) {
    for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{64} << 10, int64_t{1} << 30}) {
      INFO(name_of(policy), ", buckets of ", bytes);
      ShardOptions options = reference_options(policy);
      options.bucket_bytes = bytes;
      Trainer b(make_single_comm(), options);
      for (int s = 0; s < 3; ++s)
        CHECK(b.step({batch.all()}, reference_scalars()).grad_norm == norms[s]);
      Saved y;
      save(*b.shard, y);
      CHECK((x == y));
    }
  }
}

TEST_CASE("micro-batches give the step of the whole batch") {
  for (const ShardPolicy policy : policies) {
    INFO(std::string(name_of(policy)));
    Trainer a(make_single_comm(), reference_options(ShardPolicy::optimizer));
    Trainer b(make_single_comm(), reference_options(policy));
    a.use_reference_weights();
    b.use_reference_weights();
    HostBatch batch = reference_batch();
    for (int s = 0; s < 3; ++s) {
      a.step({batch.all()}, reference_scalars());
      b.step_with({batch.part(0, 2), batch.part(2, 1)}, 3, reference_scalars());
      CHECK(b.loss() == doctest::Approx(a.loss()).epsilon(1e-5));
    }
    const auto x = a.all_weights(), y = b.all_weights();
    double largest = 0;
    for (size_t i = 0; i < x.size(); ++i) largest = std::max(largest, std::abs(x[i] - y[i]));
    CHECK(largest < 2e-5);
  }
}

TEST_CASE("a gradient that is not finite changes nothing") {
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Trainer t(make_single_comm(), reference_options(ShardPolicy::optimizer));
    HostBatch batch = reference_batch();
    t.step({batch.all()}, reference_scalars());
    Saved before, after;
    save(*t.shard, before);

    t.shard->begin_step(*t.stream);
    t.shard->grad(3).as<float>()[1] = bad;
    t.micro(batch.all(), true);
    auto stats = t.shard->step(*t.stream, reference_scalars());
    REQUIRE(stats);
    CHECK(stats->skipped);
    CHECK(t.shard->updates() == 1);
    save(*t.shard, after);
    CHECK(before == after);

    CHECK_FALSE(t.step({batch.all()}, reference_scalars()).skipped);
    CHECK(t.shard->updates() == 2);
  }
}

TEST_CASE("a batch without targets is a step that changes nothing") {
  Trainer t(make_single_comm(), reference_options(ShardPolicy::optimizer));
  HostBatch batch = reference_batch();
  batch.targets.assign(batch.targets.size(), -1);
  StepScalars scalars = reference_scalars();
  scalars.tokens = 0;
  const auto before = t.all_weights();
  CHECK(t.step({batch.all()}, scalars).skipped);
  CHECK(t.all_weights() == before);
}

TEST_CASE("a shard that was saved and loaded goes on with the same bits") {
  for (ShardPolicy policy : policies) {
    HostBatch batch = reference_batch();
    Trainer a(make_single_comm(), reference_options(policy));
    for (int s = 0; s < 2; ++s) a.step({batch.all()}, reference_scalars());
    Saved saved;
    save(*a.shard, saved);

    Trainer b(make_single_comm(), reference_options(policy));
    b.use_reference_weights();  // anything else
    load(b, saved, a.shard->updates());
    for (int s = 0; s < 2; ++s) {
      a.step({batch.all()}, reference_scalars());
      b.step({batch.all()}, reference_scalars());
    }
    Saved x, y;
    save(*a.shard, x);
    save(*b.shard, y);
    CHECK(x == y);
  }
}

TEST_CASE("the ranks together own every element of every slot once, and want what they own") {
  for (ShardPolicy policy : policies) {
    for (int size : {1, 2, 3, 5}) {
      Saved saved;
      std::map<std::string, int64_t> sizes;
      for (int rank = 0; rank < size; ++rank) {
        Trainer t(std::make_unique<RecordingComm>(rank, size), reference_options(policy));
        for (const ParamSpec& s : t.model->params()) sizes[s.name] = s.size();
        save(*t.shard, saved);
        const auto owned = t.shard->owned(), wanted = t.shard->wanted();
        REQUIRE(owned.size() == wanted.size());
        for (size_t i = 0; i < owned.size(); ++i) CHECK(owned[i].mem.p == wanted[i].mem.p);
      }
      CHECK(saved.size() == 3 * sizes.size());
      for (const auto& [name, n] : sizes) {
        for (const char* slot : {"/weight", "/m", "/v"}) {
          CHECK(static_cast<int64_t>(saved[name + slot].size()) == n);
        }
      }
    }
  }
}

TEST_CASE("what some ranks saved, any other number of ranks loads in any form") {
  for (ShardPolicy policy : policies) {
    auto save_all = [&](int size, const Saved* from) {
      Saved saved;
      for (int rank = 0; rank < size; ++rank) {
        Trainer t(std::make_unique<RecordingComm>(rank, size),
                  reference_options(from ? policy : ShardPolicy::optimizer));
        if (from) load(t, *from, 1);
        save(*t.shard, saved);
      }
      return saved;
    };
    Saved saved = save_all(2, nullptr);
    float unique = 0;
    for (auto& [name, elements] : saved) {
      for (auto& [i, value] : elements) value = ++unique;
    }
    for (int size : {1, 3, 4}) CHECK(save_all(size, &saved) == saved);
  }
}

TEST_CASE("reductions are issued in one order, while backward runs, on the last micro-batch only") {
  for (ShardPolicy policy : {ShardPolicy::none, ShardPolicy::optimizer}) {
    Trainer t(std::make_unique<RecordingComm>(1, 2), reference_options(policy));
    auto& calls = static_cast<RecordingComm&>(*t.comm).calls;
    calls.clear();  // of the initial weights
    HostBatch batch = reference_batch();
    const int params = static_cast<int>(t.model->params().size());

    t.shard->begin_step(*t.stream);
    t.micro(batch.part(0, 2), false);
    CHECK(calls.empty());
    // Ready from the last parameter to the first; the tied one contributes at both ends.
    t.shard->begin_micro(*t.stream, true);
    t.shard->ready(*t.stream, 0);
    for (int p = params - 1; p > 0; --p) t.shard->ready(*t.stream, p);
    const size_t before_the_end = calls.size();
    CHECK(before_the_end > 0);
    t.shard->ready(*t.stream, 0);
    CHECK(calls.size() > before_the_end);
    const auto with_work = calls;
    int64_t reduced = 0;
    for (size_t i = 0; i < calls.size(); ++i) {
      if (i > 0) CHECK(calls[i].where >= calls[i - 1].where);
      CHECK(calls[i].what == (policy == ShardPolicy::none ? "sum" : "reduce"));
      reduced += calls[i].size;
    }
    CHECK(reduced == t.layout.elements());
    CHECK(t.shard->step(*t.stream, reference_scalars()));

    // Whatever the order of readiness, and on a rank without work.
    calls.clear();
    t.shard->begin_step(*t.stream);
    t.shard->begin_micro(*t.stream, true);
    t.shard->ready(*t.stream, 0);
    for (int p = 0; p < params; ++p) t.shard->ready(*t.stream, p);
    CHECK(calls == with_work);
    CHECK(t.shard->step(*t.stream, reference_scalars()));
    calls.clear();
    t.shard->begin_step(*t.stream);
    t.shard->no_micro(*t.stream);
    CHECK(calls == with_work);
  }
}

TEST_CASE("weights are gathered after a step, and waited for before they are read") {
  Trainer t(std::make_unique<RecordingComm>(0, 2), reference_options(ShardPolicy::optimizer));
  auto& comm = static_cast<RecordingComm&>(*t.comm);
  auto step = [&] {
    t.shard->begin_step(*t.stream);
    t.shard->no_micro(*t.stream);
    comm.calls.clear();
    comm.waited.clear();
    return t.shard->step(*t.stream, reference_scalars());
  };
  REQUIRE(step());
  // First what the norm is made of, a number for each tile.
  CHECK(comm.calls[0].size == t.layout.tiles);
  int64_t gathered = 0;
  for (const auto& c : comm.calls) {
    CHECK(c.what == "gather");
    gathered += c.size;
  }
  CHECK(gathered == t.layout.tiles + t.layout.elements());

  comm.waited.clear();
  const auto params = t.model->params();
  for (int p = 0; p < static_cast<int>(params.size()); ++p) {
    t.shard->acquire(*t.stream, params[p].block);
    const auto* weight = static_cast<std::byte*>(t.shard->weight(p).p);
    for (size_t i = 0; i < comm.calls.size(); ++i) {
      const auto* begin = static_cast<std::byte*>(comm.calls[i].where);
      if (weight >= begin && weight < begin + comm.calls[i].size * 4) {
        CHECK_MESSAGE(comm.waited.count(i + 1) == 1, params[p].name);
      }
    }
    t.shard->release(*t.stream, params[p].block);
  }
  CHECK(comm.waited.size() == comm.calls.size() - 1);

  // On a rank without work, too: before the next step's gather takes its place.
  REQUIRE(step());
  const size_t gathers = comm.calls.size() - 1;
  comm.waited.clear();
  t.shard->begin_step(*t.stream);
  t.shard->no_micro(*t.stream);
  CHECK(comm.waited.size() == gathers);
  REQUIRE(t.shard->step(*t.stream, reference_scalars()));

  // A gather that failed is reported by the next step.
  REQUIRE(step());
  comm.broken = true;
  t.shard->acquire(*t.stream, 0);
  comm.broken = false;
  const auto failed = step();
  REQUIRE_FALSE(failed);
  CHECK(failed.error().what == "the network is gone");
}

TEST_CASE("any number of ranks trains like PyTorch, with equal bits on every rank") {
  const auto& expected = reference()["training"];
  const size_t steps = expected["losses"].size();
  const std::vector<std::vector<int>> worlds = {{1}, {2}, {3}, {4}, {2, 1}, {1, 3}};
  for (const std::vector<int>& per_node : worlds) {
    for (ShardPolicy policy : policies) {
      INFO(std::string(name_of(policy)));
      // What a rank ends with: loss and norm of each step, then all weights.
      auto body = [&](Control& control, const std::vector<int>& sockets) -> std::string {
        auto comm = make_test_comm(control, sockets);
        if (!comm) return comm.error().what;
        Comm& world = **comm;
        Trainer t(std::move(*comm), reference_options(policy));
        t.use_reference_weights();
        // Three sequences: of four ranks, one has none.
        HostBatch batch = reference_batch();
        std::vector<Batch> mine;
        for (int64_t i = 0; i < batch.sequences; ++i) {
          if (i % world.size() == world.rank()) mine.push_back(batch.part(i, 1));
        }
        std::vector<double> record;
        for (size_t s = 0; s < steps; ++s) {
          const StepStats stats =
              needs_equal_passes(policy)
                  ? t.step_with(mine, (3 + world.size() - 1) / world.size(), reference_scalars())
                  : t.step(mine, reference_scalars());
          double loss = t.loss();
          if (auto ok = world.all_sum({&loss, 1}, Deadline::in(Seconds(20))); !ok)
            return ok.error().what;
          record.push_back(loss / reference_scalars().tokens);
          record.push_back(stats.grad_norm);
        }
        const std::vector<double> weights = t.all_weights();
        record.insert(record.end(), weights.begin(), weights.end());
        return std::string(reinterpret_cast<const char*>(record.data()), record.size() * 8);
      };
      const std::vector<std::string> results = testing::run_ranks({per_node}, body);

      for (const std::string& r : results) CHECK((r == results[0]));
      std::vector<double> record(results[0].size() / 8);
      std::memcpy(record.data(), results[0].data(), record.size() * 8);
      REQUIRE_MESSAGE(record.size() > 2 * steps, results[0]);
      for (size_t s = 0; s < steps; ++s) {
        CHECK(record[2 * s] == doctest::Approx(expected["losses"][s].get<double>()).epsilon(1e-5));
        CHECK(record[2 * s + 1] ==
              doctest::Approx(expected["grad_norms"][s].get<double>()).epsilon(1e-5));
      }
      auto model = make_gpt(reference_config());
      REQUIRE(model);
      auto next = record.begin() + 2 * steps;
      for (const ParamSpec& spec : (*model)->params()) {
        check_summary(spec.hf, std::vector<double>(next, next + spec.size()),
                      expected["weights"][spec.hf], 2e-5);
        next += spec.size();
      }
    }
  }
}

// Rests of tiles included, which are in no parameter.
TEST_CASE("what a step left in the memory of gradients is in no later sum") {
  for (ShardPolicy policy : policies) {
    INFO(std::string(name_of(policy)));
    Trainer t(make_single_comm(), reference_options(policy)),
        fresh(make_single_comm(), reference_options(policy));
    HostBatch batch = reference_batch();
    t.shard->begin_step(*t.stream);
    t.begin_micro(true);
    for (const Layout::Entry& e : t.layout.entries) {
      for (int i = 0; i < t.model->params()[e.param].contributions; ++i) {
        float* tiles = t.shard->grad(e.param).as<float>();
        std::fill_n(tiles, e.whole(), std::numeric_limits<float>::quiet_NaN());
        t.shard->ready(*t.stream, e.param);
      }
    }
    auto stats = t.shard->step(*t.stream, reference_scalars());
    REQUIRE(stats);
    CHECK(stats->skipped);
    for (Trainer* each : {&t, &fresh})
      each->step({batch.part(0, 2), batch.part(2, 1)}, reference_scalars());
    CHECK(t.all_weights() == fresh.all_weights());
  }
}

TEST_CASE("a gradient that is not finite on one rank is skipped by all") {
  for (ShardPolicy policy : policies) {
    auto body = [&](Control& control, const std::vector<int>& sockets) -> std::string {
      auto comm = make_test_comm(control, sockets);
      if (!comm) return comm.error().what;
      Trainer t(std::move(*comm), reference_options(policy));
      const auto before = t.all_weights();
      HostBatch batch = reference_batch();
      t.shard->begin_step(*t.stream);
      t.begin_micro(true);
      float& element = *t.shard->grad(2).as<float>();
      if (t.comm->rank() == 1) element = std::numeric_limits<float>::quiet_NaN();
      t.pass(batch.part(t.comm->rank(), 1));
      auto stats = t.shard->step(*t.stream, reference_scalars());
      if (!stats) return stats.error().what;
      if (!stats->skipped || t.shard->updates() != 0) return "not skipped";
      return t.all_weights() == before ? "" : "the weights changed";
    };
    for (const std::string& r : testing::run_ranks({{3}}, body)) CHECK(r == "");
  }
}

TEST_CASE("a step before all gradients are there is an error") {
  Trainer t(make_single_comm(), reference_options(ShardPolicy::optimizer));
  HostBatch batch = reference_batch();
  t.shard->begin_step(*t.stream);
  t.micro(batch.all(), false);
  CHECK_FALSE(t.shard->step(*t.stream, reference_scalars()));
}

TEST_CASE("large tensors begin in parts as they would begin whole") {
  GptConfig config = reference_config();
  config.width = 260;  // a tensor of 270,400 elements, whose last tile has a rest
  config.heads = 2;
  auto model = make_gpt(config);
  REQUIRE(model);
  const auto specs = (*model)->params();
  const Layout layout = Layout::plan(specs);
  std::vector<float> whole(static_cast<size_t>(layout.elements()));
  initialise(specs, layout, 7, View(whole.data(), DType::f32, {layout.elements()}));

  const auto device = make_host_device();
  const auto ops = make_cpu_ops(1);
  const auto comm = make_single_comm();
  auto frozen = make_frozen_shard({*device, *ops, *comm, specs, layout, 7});
  REQUIRE(frozen);
  for (size_t p = 0; p < specs.size(); ++p) {
    const View w = (*frozen)->weight(static_cast<int>(p));
    const auto begin = whole.begin() + layout.of(static_cast<int>(p)).offset;
    CHECK(std::equal(begin, begin + w.size(), w.as<float>()));
  }
}

TEST_CASE("a frozen shard has weights and nothing else") {
  auto device = make_host_device();
  auto comm = make_single_comm();
  auto ops = make_cpu_ops(1);
  auto model = make_gpt(reference_config());
  REQUIRE(model);
  const auto params = (*model)->params();
  const Layout layout = Layout::plan(params);
  const ShardParts parts{*device, *ops, *comm, params, layout, 7};
  auto frozen = make_frozen_shard(parts);
  REQUIRE(frozen);
  Trainer t(make_single_comm(), reference_options(ShardPolicy::optimizer));
  for (int p = 0; p < static_cast<int>(params.size()); ++p) {
    CHECK(values((*frozen)->weight(p)) == t.weight(p));
  }
  CHECK((*frozen)->wanted().size() == params.size());
  CHECK((*frozen)->owned().empty());
  CHECK_FALSE((*frozen)->step(*t.stream, reference_scalars()));

  auto reference_ops = make_reference_ops();
  CHECK_FALSE(make_frozen_shard({*device, *reference_ops, *comm, params, layout, 7}));
}
