// Gradients summed as one tree over the micro-batches: the same bits on any number of ranks.
#include <doctest/doctest.h>

#include <cstring>

#include "comm/kinds.h"
#include "optim/plan.h"
#include "ranks.h"
#include "trainer.h"

using namespace trainlaunch;
using namespace trainlaunch::test;

namespace {

constexpr int64_t sequences = 8;
constexpr int steps = 3;

// Of each sequence another number of targets is masked, of the third all.
HostBatch uneven_batch(uint32_t step) {
  const GptConfig c = reference_config();
  HostBatch b = noise_batch(sequences, c.context, c.vocab);
  for (size_t i = 0; i < b.tokens.size(); ++i)
    b.tokens[i] = static_cast<int32_t>((b.tokens[i] + 7 * step) % c.vocab);
  for (int64_t s = 0; s < sequences; ++s)
    for (int64_t t = 0; t < c.context; ++t)
      if (s == 2 || t < s) b.targets[s * c.context + t] = -1;
  return b;
}

// The norm of each step, and all that a checkpoint would hold.
struct Trained {
  std::vector<double> norms;
  Saved state;
  bool operator==(const Trained&) const = default;
};

std::string pack(const Trained& t) {
  std::string out;
  const auto put = [&](const void* p, size_t n) { out.append(static_cast<const char*>(p), n); };
  put(t.norms.data(), steps * sizeof(double));
  for (const auto& [name, elements] : t.state) {
    out += name + '\0';
    const size_t n = elements.size();
    put(&n, sizeof n);
    for (const auto& [i, value] : elements) {
      put(&i, sizeof i);
      put(&value, sizeof value);
    }
  }
  return out;
}

Trained unpack(const std::string& in) {
  Trained t;
  const char* p = in.data();
  const auto get = [&](void* to, size_t n) {
    std::memcpy(to, p, n);
    p += n;
  };
  REQUIRE_MESSAGE(in.size() > 1000, in);  // or what went wrong
  t.norms.resize(steps);
  get(t.norms.data(), steps * sizeof(double));
  while (p < in.data() + in.size()) {
    auto& elements = t.state[p];
    p += std::strlen(p) + 1;
    size_t n = 0;
    get(&n, sizeof n);
    for (; n > 0; --n) {
      int64_t i = 0;
      float value = 0;
      get(&i, sizeof i);
      get(&value, sizeof value);
      elements[i] = value;
    }
  }
  return t;
}

struct Setup {
  std::vector<int> per_node;
  ShardPolicy policy = ShardPolicy::optimizer;
  int64_t micro_batches = 4;
  std::vector<int> threads{1};  // of a rank: these in turn
  double clip = 0.1;            // far below the norms
};

Trained train(const Setup& setup) {
  const std::vector<std::string> ranks = testing::run_ranks(
      {setup.per_node}, [&](Control& control, const std::vector<int>& sockets) -> std::string {
        auto comm = make_test_comm(control, sockets, SumOrder::tree);
        if (!comm) return comm.error().what;
        Comm& world = **comm;
        ShardOptions options = reference_options(setup.policy);
        options.micro_batches = setup.micro_batches;
        const int64_t micro = sequences / setup.micro_batches;
        Trainer t(std::move(*comm), options, reference_config(), micro,
                  setup.threads[static_cast<size_t>(world.rank()) % setup.threads.size()],
                  SameBits::any_threads);
        Trained mine;
        const int64_t share = setup.micro_batches / world.size();
        for (int s = 0; s < steps; ++s) {
          HostBatch batch = uneven_batch(static_cast<uint32_t>(s));
          double tokens = 0;
          for (int32_t target : batch.targets) tokens += target >= 0;
          t.shard->begin_step(*t.stream);
          for (int64_t i = 0; i < share; ++i) {
            t.micro(batch.part((world.rank() * share + i) * micro, micro), i + 1 == share);
          }
          const auto stats = t.shard->step(*t.stream, {1e-2, setup.clip, tokens});
          if (!stats) return stats.error().what;
          mine.norms.push_back(stats->grad_norm);
          for (const ParamSpec& p : t.model->params()) t.shard->acquire(*t.stream, p.block);
        }
        save(*t.shard, mine.state);
        return pack(mine);
      });
  Trained all;
  for (const std::string& rank : ranks) {
    Trained mine = unpack(rank);
    if (all.norms.empty()) all.norms = mine.norms;
    CHECK(mine.norms == all.norms);
    for (auto& [name, elements] : mine.state) all.state[name].merge(elements);
  }
  return all;
}

}  // namespace

TEST_CASE("the same bits on any number of ranks, however they are placed, and of threads") {
  for (const int64_t micro_batches : {4, 8}) {
    const Trained alone = train({.per_node = {1}, .micro_batches = micro_batches});
    CHECK(alone.norms[0] > 1);  // clipped
    const auto same = [&](const std::vector<int>& per_node, ShardPolicy policy) {
      INFO("ranks ", per_node.front(), " and more on ", per_node.size(), " nodes");
      CHECK((train({per_node, policy, micro_batches}) == alone));
    };
    if (micro_batches == 8) {
      same({8}, ShardPolicy::optimizer);
      same({3, 5}, ShardPolicy::none);
    } else {
      for (const std::vector<int>& per_node :
           std::vector<std::vector<int>>{{2}, {4}, {2, 2}, {1, 3}})
        for (const ShardPolicy policy : {ShardPolicy::none, ShardPolicy::optimizer})
          same(per_node, policy);
    }
    CHECK((train({.per_node = {2}, .micro_batches = micro_batches, .threads = {1, 2}}) == alone));
  }
}

TEST_CASE("the tree's bits are its own, and close to those of any other sum") {
  const Trained four = train({.per_node = {1}, .micro_batches = 4});
  const Trained eight = train({.per_node = {1}, .micro_batches = 8});
  CHECK_FALSE((four == eight));
  // A gradient is a sum of sequences * context terms, each rounded to 2^-24 of it: the norm of all
  // of them differs by far less than the terms' number times that.
  const double rounding = sequences * static_cast<double>(reference_config().context) / (1 << 24);
  for (size_t s = 0; s < four.norms.size(); ++s)
    CHECK(four.norms[s] == doctest::Approx(eight.norms[s]).epsilon(rounding));
}

TEST_CASE("buffers for gradients: one, and one more for each level of the rank's branch") {
  CHECK(gradient_buffers(0, 3) == 1);
  CHECK(gradient_buffers(4, 4) == 1);
  CHECK(gradient_buffers(4, 2) == 2);
  CHECK(gradient_buffers(4, 1) == 3);
  CHECK(gradient_buffers(64, 2) == 6);
}

TEST_CASE("a rank that had not its branch of the tree cannot step") {
  ShardOptions options = reference_options(ShardPolicy::optimizer);
  options.micro_batches = 4;
  Trainer t(make_single_comm(), options);
  HostBatch batch = reference_batch();
  t.shard->begin_step(*t.stream);
  t.micro(batch.part(0, 1), false);
  t.micro(batch.part(1, 1), true);
  CHECK_FALSE(t.shard->step(*t.stream, reference_scalars()));
}
