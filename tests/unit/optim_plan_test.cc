// What a form of data parallelism costs: planned, and then counted.
#include <doctest/doctest.h>

#include <numeric>

#include "comm/kinds.h"
#include "optim/plan.h"
#include "optim/rotation.h"
#include "ranks.h"
#include "trainer.h"

using namespace trainlaunch;
using namespace trainlaunch::test;

namespace {

// Counts the memory that a device gives.
class CountingDevice final : public Device {
 public:
  const char* name() const override { return "counting"; }
  bool host_readable() const override { return true; }
  Result<std::unique_ptr<Block>> allocate(size_t bytes) override {
    taken += bytes;
    return host_->allocate(bytes);
  }
  Result<std::unique_ptr<Stream>> stream() override { return host_->stream(); }
  void upload(Stream& s, View device, View host) override { host_->upload(s, device, host); }
  void download(Stream& s, View host, View device) override { host_->download(s, host, device); }

  size_t taken = 0;

 private:
  std::unique_ptr<Device> host_ = make_host_device();
};

// One of several ranks that do not exist, which counts the memory of the communicator.
class CountingComm final : public Comm {
 public:
  CountingComm(int rank, int size) : rank_(rank), size_(size) {}
  const char* name() const override { return "counting"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Result<View> alloc(std::string_view what, DType t, int64_t count) override {
    taken += static_cast<size_t>(count) * bytes_of(t);
    return one_->alloc(what, t, count);
  }
  Ticket reduce_scatter(View v, const Owners& o, DType w, Event e) override {
    return one_->reduce_scatter(v, o, w, e);
  }
  Ticket all_reduce(View v, const Owners& o, DType w, Event e) override {
    return one_->all_reduce(v, o, w, e);
  }
  Ticket all_gather(View v, const Owners& o, Event e) override { return one_->all_gather(v, o, e); }
  Status wait(Ticket t, Deadline d) override { return one_->wait(t, d); }
  Status all_sum(std::span<double>, Deadline) override { return {}; }
  Status broadcast(View, int, Deadline) override { return {}; }
  Status barrier(Deadline) override { return {}; }
  void abort() noexcept override {}
  Moved moved() const override { return {}; }

  size_t taken = 0;

 private:
  int rank_, size_;
  std::unique_ptr<Comm> one_ = make_single_comm();
};

Places places_of(const std::vector<int>& per_node) {
  Places places;
  places.first = {0};
  for (const int n : per_node) places.first.push_back(places.first.back() + n);
  return places;
}

}  // namespace

TEST_CASE("blocks take their turn in two buffers, up and down again") {
  // Blocks: 0 stays (used at both ends), 1 to 4 take turns.
  std::vector<ParamSpec> specs(5);
  for (int b = 0; b < 5; ++b) specs[b].block = b;
  specs[0].contributions = 2;
  Rotation r(specs);
  CHECK(r.stays(0));
  std::vector<int> gathered;
  const auto note = [&](const std::vector<Rotation::Fetch>& fetches) {
    for (const auto& f : fetches) gathered.push_back(f.block);
  };
  const auto visit = [&](int b) {
    const auto fetches = r.acquire(b);
    note(fetches);
    // What is acquired is there, or the first to be gathered now.
    if (!r.stays(b)) CHECK(r.buffer_of(b).has_value());
    const auto mine = r.buffer_of(b);
    for (const auto& f : fetches)
      if (f.block != b) CHECK((!mine || f.buffer != *mine));
    r.release(b);
  };
  const auto up_and_down = [&] {
    for (int b = 0; b < 5; ++b) visit(b);
    visit(0);  // the head
    for (int b = 4; b > 0; --b) visit(b);
  };
  note(r.restart());
  CHECK(gathered == std::vector<int>{1});
  up_and_down();
  CHECK(gathered == std::vector<int>{1, 2, 3, 4, 2, 1});  // 4 and 3 were there still
  gathered.clear();
  up_and_down();
  CHECK(gathered == std::vector<int>{3, 4, 2, 1});
  // An evaluation goes up only.
  gathered.clear();
  for (int b = 0; b < 5; ++b) visit(b);
  for (int b = 0; b < 5; ++b) visit(b);
  CHECK(gathered == std::vector<int>{3, 4, 1, 2, 3, 4});
}

TEST_CASE("memory of each form is what is planned, and saves what it should") {
  const GptConfig config{3, 2, 128, 64, 700};
  for (const int64_t bucket : {int64_t{100} << 10, int64_t{25} << 20}) {
    for (const DType compute : {DType::f32, DType::bf16}) {
      for (const int ranks : {1, 2, 4}) {
        std::map<ShardPolicy, MemoryPlan> planned;
        auto model = make_gpt(config);
        REQUIRE(model);
        const auto specs = (*model)->params();
        const Layout layout = Layout::plan(specs);
        for (const ShardPolicy policy : policies) {
          ShardOptions options = reference_options(policy);
          options.bucket_bytes = bucket;
          const int rank = ranks - 1;
          const MemoryPlan plan = memory_of({options, specs, layout, compute}, rank, ranks);
          CountingDevice device;
          CountingComm comm(rank, ranks);
          auto ops = make_cpu_ops(1, SameBits::same_threads, compute);
          auto shard = make_shard({device, *ops, comm, specs, layout, 1}, options);
          REQUIRE(shard);
          INFO(name_of(policy), " of ", ranks, " in ", name_of(compute));
          // Besides, the scalars of a step; an arena's pieces begin at multiples of 64 bytes.
          const size_t taken = device.taken + comm.taken;
          CHECK(taken >= plan.total());
          CHECK(taken <= plan.total() + 1024);
          planned[policy] = plan;
        }
        const auto n = static_cast<double>(layout.elements()), part = n / ranks;
        // Parts are whole tiles of each bucket.
        const double tiles = static_cast<double>(specs.size()) * Layout::tile;
        const double w = static_cast<double>(bytes_of(compute));
        const auto near = [&](uint64_t bytes, double expected) {
          CHECK(std::abs(static_cast<double>(bytes) - expected) <= 8 * tiles);
        };
        for (const ShardPolicy policy : policies) {
          const MemoryPlan& m = planned[policy];
          INFO(name_of(policy), " of ", ranks, " in ", name_of(compute));
          const bool full = policy == ShardPolicy::full;
          near(m.optimizer, 8 * (policy == ShardPolicy::none ? n : part));
          near(m.gradients, 4 * (needs_equal_passes(policy) ? part : n));
          if (!full) near(m.weights, w * n);
          if (full) near(m.weights + m.masters, (compute == DType::f32 ? 4 : 6) * part);
          if (!full && compute == DType::bf16)
            near(m.masters, 4 * (policy == ShardPolicy::none ? n : part));
        }
      }
    }
  }
}

TEST_CASE("what each form sends in a step is what is planned") {
  const GptConfig config = reference_config();
  struct Case {
    DType compute, wire;
    std::vector<int> per_node;
  };
  for (const Case& c : std::vector<Case>{{DType::f32, DType::f32, {1, 1}},
                                         {DType::f32, DType::f32, {2, 2}},
                                         {DType::f32, DType::bf16, {1, 3}},
                                         {DType::bf16, DType::f32, {1, 3}},
                                         {DType::bf16, DType::bf16, {2, 2}},
                                         {DType::f32, DType::f32, {2}}}) {
    std::map<ShardPolicy, uint64_t> sent;  // by all ranks
    for (const ShardPolicy policy : policies) {
      ShardOptions options = reference_options(policy);
      options.wire = c.wire;
      const auto body = [&](Control& control, const std::vector<int>& sockets) -> std::string {
        auto made = make_test_comm(control, sockets);
        if (!made) return made.error().what;
        Comm& comm = **made;
        Trainer t(std::move(*made), options, config, 3, 1, SameBits::same_threads, c.compute);
        HostBatch batch = reference_batch();
        const std::vector<Batch> mine{batch.part(0, 1), batch.part(1, 1)};
        // A barrier ends what is under way; it sends a little itself.
        const auto settled = [&]() -> Moved {
          auto s = comm.barrier(Deadline::in(Seconds(20)));
          REQUIRE_MESSAGE(s, (s ? "" : s.error().what));
          return comm.moved();
        };
        t.step(mine, reference_scalars());
        const Moved first = settled(), before = settled();
        t.step(mine, reference_scalars());
        Moved after = settled();
        after.sent -= before.sent - first.sent;
        after.received -= before.received - first.received;
        const Moved plan = traffic_of({options, t.model->params(), t.layout, c.compute},
                                      comm.rank(), places_of(c.per_node), 2);
        return std::to_string(after.sent - before.sent) + " " +
               std::to_string(after.received - before.received) + " " +
               std::to_string(after.shared - before.shared) + " = " + std::to_string(plan.sent) +
               " " + std::to_string(plan.received) + " " + std::to_string(plan.shared);
      };
      INFO(name_of(policy), " in ", name_of(c.compute), ", wire ", name_of(c.wire), ", ",
           c.per_node.front(), " and more of ", c.per_node.size(), " nodes");
      for (const std::string& r : testing::run_ranks({c.per_node}, body)) {
        const size_t middle = r.find(" = ");
        REQUIRE_MESSAGE(middle != std::string::npos, r);
        CHECK(r.substr(0, middle) == r.substr(middle + 3));
        sent[policy] += std::stoull(r);
      }
    }
    if (c.per_node.size() < 2) continue;
    // Two nodes: what is owned elsewhere is sent once by each, a reduction or a gather is N in all.
    const auto model = make_gpt(config);
    REQUIRE(model);
    const Layout layout = Layout::plan((*model)->params());
    const auto n = static_cast<uint64_t>(layout.elements()),
               norm = static_cast<uint64_t>(layout.tiles) * 8;
    const uint64_t g = bytes_of(c.wire), w = bytes_of(c.compute);
    CHECK(sent[ShardPolicy::none] == (g + 4) * n + norm);
    CHECK(sent[ShardPolicy::optimizer] == (g + w) * n + norm);
    CHECK(sent[ShardPolicy::gradients] == (2 * g + w) * n + norm);
    CHECK(sent[ShardPolicy::full] >= (2 * g + w) * n + norm);
    CHECK(sent[ShardPolicy::full] <= (2 * g + 4 * w) * n + norm);
  }
}

TEST_CASE("many passes gather what as many passes one by one gather") {
  for (int64_t layers = 1; layers <= 5; ++layers) {
    GptConfig config = reference_config();
    config.layers = layers;
    const auto model = make_gpt(config);
    REQUIRE(model);
    const auto specs = (*model)->params();
    const Layout layout = Layout::plan(specs);
    std::vector<uint64_t> elements(static_cast<size_t>(layers) + 2, 0);  // of each block
    for (const Layout::Entry& e : layout.entries)
      elements[specs[e.param].block] += static_cast<uint64_t>(e.tiles * Layout::tile);
    ShardOptions options = reference_options(ShardPolicy::full);
    const auto sent = [&](int64_t passes) {
      uint64_t all = 0;
      for (const int rank : {0, 1})
        all += traffic_of({options, specs, layout}, rank, places_of({1, 1}), passes).sent;
      return all;
    };

    Rotation rotation(specs);
    uint64_t gathered = elements[0];  // it stays
    const auto fetch = [&](const std::vector<Rotation::Fetch>& fetches) {
      for (const Rotation::Fetch& f : fetches) gathered += elements[f.block];
    };
    fetch(rotation.restart());
    for (int64_t pass = 1; pass <= 9; ++pass) {
      for (int i = 0; i < 2 * rotation.blocks(); ++i) {
        const int b = i < rotation.blocks() ? i : 2 * rotation.blocks() - 1 - i;
        fetch(rotation.acquire(b));
        rotation.release(b);
      }
      INFO(layers, " layers, ", pass, " passes");
      const auto n = static_cast<uint64_t>(layout.elements());
      CHECK(sent(pass) == 4 * (static_cast<uint64_t>(pass) * n + gathered) +
                              static_cast<uint64_t>(layout.tiles) * 8);
    }
    CHECK(sent(1000000000) > sent(999999999));
  }
}
