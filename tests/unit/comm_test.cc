// What the calls of a communicator give: sums, types, parts of any size, and what they move.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "comm/route.h"
#include "comm/sum.h"
#include "comm/traffic.h"
#include "comms.h"
#include "temporary.h"

using namespace trainlaunch;
using namespace trainlaunch::testing;

namespace {

// A number that anyone can make, of widely varying size, so that the order of a sum shows.
float number(uint64_t set, int rank, int64_t i) {
  uint64_t x = (set << 48) + (static_cast<uint64_t>(rank) << 40) + static_cast<uint64_t>(i);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;  // splitmix64
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  x ^= x >> 31;
  const uint32_t exponent = 116 + static_cast<uint32_t>(x >> 40) % 24;
  const uint32_t bits = (static_cast<uint32_t>(x) & 0x807fffff) | exponent << 23;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Random parts, some of them empty.
Owners cut(uint64_t seed, int64_t count, int size) {
  Owners owners;
  owners.begin = {0, count};
  for (int i = 1; i < size; ++i) {
    const Philox r = philox(seed, {static_cast<uint32_t>(i), 1, 2, 3});
    owners.begin.push_back(r[1] % 4 == 0 ? 0 : static_cast<int64_t>(r[0] % (count + 1)));
  }
  std::sort(owners.begin.begin(), owners.begin.end());
  return owners;
}

// What the header promises: ranks in order within a node, then the nodes' sums in order.
float documented_sum(const std::vector<std::vector<int>>& nodes, uint64_t set, int64_t i) {
  float total = 0;
  for (size_t n = 0; n < nodes.size(); ++n) {
    float sum = number(set, nodes[n][0], i);
    for (size_t k = 1; k < nodes[n].size(); ++k) sum += number(set, nodes[n][k], i);
    total = n == 0 ? sum : total + sum;
  }
  return total;
}

// The same of a tree: the sum over ranks [first, first + count).
float tree_sum(int first, int count, uint64_t set, int64_t i) {
  if (count == 1) return number(set, first, i);
  return tree_sum(first, count / 2, set, i) + tree_sum(first + count / 2, count / 2, set, i);
}

std::vector<std::vector<int>> groups(const World& w, bool shared) {
  std::vector<std::vector<int>> g;
  for (int r = 0; r < w.size; ++r) {
    if (r == 0 || !shared || w.node_of[r] != w.node_of[r - 1]) g.emplace_back();
    g.back().push_back(r);
  }
  return g;
}

struct Case {
  std::vector<int> per_node;
  bool sockets;
  const char* name;
};
const std::vector<Case> cases{
    {{2}, true, "shared"},     {{3}, true, "shared"},        {{4}, true, "shared"},
    {{1, 1}, true, "network"}, {{2, 2}, true, "network"},    {{2, 1}, true, "network"},
    {{1, 2}, true, "network"}, {{1, 1, 2}, true, "network"}, {{2}, false, "network"}};

std::string label(const Case& c) {
  std::string text;
  for (int n : c.per_node) text += (text.empty() ? "" : "+") + std::to_string(n);
  return text + (c.sockets ? "" : " without sockets");
}
}  // namespace

TEST_CASE("sums are taken in order") {
  for (int inputs = 1; inputs <= 7; ++inputs) {
    for (int64_t n : {0, 1, 5, 2048, 5000}) {
      std::vector<std::vector<float>> data(inputs);
      std::vector<Branch> in;
      for (int k = 0; k < inputs; ++k) {
        for (int64_t i = 0; i < n; ++i) data[k].push_back(number(1, k, i));
        in.push_back({data[k].data(), 1});
      }
      std::vector<float> want;
      for (int64_t i = 0; i < n; ++i) {
        float s = data[0][i];
        for (int k = 1; k < inputs; ++k) s += data[k][i];
        want.push_back(s);
      }
      float* out = data[inputs / 2].data();  // in place of one of them
      sum_in_order(out, in, n);
      CHECK(std::equal(want.begin(), want.end(), out));
    }
  }
}

TEST_CASE("branches make a tree") {
  // Ways to cut the tree over eight ranks into branches, by their ranks.
  for (const std::vector<int>& cut : std::vector<std::vector<int>>{
           {8}, {4, 4}, {1, 1, 2, 4}, {4, 2, 1, 1}, {2, 1, 1, 1, 1, 2}, {1, 1, 1, 1, 1, 1, 1, 1}}) {
    for (const int64_t n : {0, 1, 511, 2000}) {
      std::vector<std::vector<float>> data;
      std::vector<Branch> in;
      for (int first = 0; const int ranks : cut) {
        data.emplace_back();
        for (int64_t i = 0; i < n; ++i) data.back().push_back(tree_sum(first, ranks, 1, i));
        in.push_back({data.back().data(), ranks});
        first += ranks;
      }
      std::vector<float> want;
      for (int64_t i = 0; i < n; ++i) want.push_back(tree_sum(0, 8, 1, i));
      float* out = data.back().data();  // in place of one of them
      sum_as_tree(out, in, n);
      CHECK(std::equal(want.begin(), want.end(), out));
    }
  }
}

TEST_CASE("a world of one") {
  auto control = [] {
    static trainlaunch::testing::Board board;
    return trainlaunch::testing::BoardControl(World(), board);
  }();
  auto comm = make_comm(control, {}, {});
  REQUIRE(comm);
  CHECK((*comm)->size() == 1);
  CHECK((*comm)->name() == std::string("single"));
  auto v = (*comm)->alloc("x", DType::f32, 10);
  REQUIRE(v);
  CHECK(v->as<float>()[9] == 0);
  v->as<float>()[3] = 2.5f;
  const Ticket t = (*comm)->reduce_scatter(*v, {{0, 10}}, DType::f32, Event());
  CHECK((*comm)->wait(t, soon()));
  CHECK(v->as<float>()[3] == 2.5f);
  double x = 3;
  CHECK((*comm)->all_sum({&x, 1}, soon()));
  CHECK(x == 3);
  CHECK_FALSE((*comm)->wait(t + 1, soon()));
  (*comm)->abort();
  CHECK_FALSE((*comm)->barrier(soon()));
}

TEST_CASE("reduce_scatter and all_gather give the documented bits") {
  for (const Case& c : cases) {
    CAPTURE(label(c));
    check_all_well(run_comms({c.per_node, c.sockets}, [&](Comm& comm, const World& w) {
      EXPECT(comm.name() == std::string(c.name));
      EXPECT(comm.rank() == w.rank);
      EXPECT(comm.size() == w.size);

      // The last one is used once, and needs more messages than are awaited at a time.
      const std::vector<int64_t> sizes{1, 1000, 70'001, 1'400'000};
      std::vector<View> views;
      for (int64_t n : sizes) {
        auto v = comm.alloc("buffer", DType::f32, n);
        EXPECT_OK(v);
        for (int64_t i = 0; i < n; ++i) EXPECT(v->template as<float>()[i] == 0);
        views.push_back(*v);
      }
      const auto nodes = groups(w, c.sockets);
      for (int round = 0; round < 3; ++round) {
        std::vector<Owners> owners;
        std::vector<Ticket> tickets;
        const size_t used = round == 0 ? 4 : 3;
        for (size_t b = 0; b < used; ++b) {
          const uint64_t set = round * 10 + b;
          owners.push_back(cut(set, sizes[b], w.size));
          if (b == 3) std::fill(owners[b].begin.begin() + 1, owners[b].begin.end() - 1, 1000);
          for (int64_t i = 0; i < sizes[b]; ++i)
            views[b].template as<float>()[i] = number(set, w.rank, i);
          tickets.push_back(comm.reduce_scatter(views[b], owners[b], DType::f32, Event()));
        }
        for (size_t b = used; b-- > 0;) {
          const uint64_t set = round * 10 + b;
          EXPECT_OK(comm.wait(tickets[b], soon()));
          const float* mine = views[b].template as<float>();
          const int64_t begin = owners[b].offset(w.rank), n = owners[b].count(w.rank);
          for (int64_t i = begin; i < begin + n; ++i) {
            EXPECT(mine[i] == documented_sum(nodes, set, i));
            double exact = 0, size = 0;
            for (int r = 0; r < w.size; ++r) {
              exact += number(set, r, i);
              size += std::abs(number(set, r, i));
            }
            EXPECT(std::abs(mine[i] - exact) <= 1e-6 * size);
          }
        }
        for (size_t b = 0; b < used; ++b)
          tickets[b] = comm.all_gather(views[b], owners[b], Event());
        for (size_t b = 0; b < used; ++b) {
          EXPECT_OK(comm.wait(tickets[b], soon()));
          for (int64_t i = 0; i < sizes[b]; ++i)
            EXPECT(views[b].template as<float>()[i] == documented_sum(nodes, round * 10 + b, i));
        }
      }
      return std::string();
    }));
  }
}

TEST_CASE("all_reduce gives every rank the documented bits, and touches nothing else") {
  for (const Case& c : cases) {
    CAPTURE(label(c));
    check_all_well(run_comms({c.per_node, c.sockets}, [&](Comm& comm, const World& w) {
      const auto nodes = groups(w, c.sockets);
      constexpr int64_t margin = 7;
      const float outside = static_cast<float>(-1 - w.rank);
      for (const int64_t n : {1, 1023, 1025, 70'001, 600'000}) {
        auto all = comm.alloc("buffer", DType::f32, n + 2 * margin);
        EXPECT_OK(all);
        const View v = all->slice(margin, n);
        float* const x = v.as<float>();
        for (uint64_t round = 0; round < 3; ++round) {
          const Owners owners = cut(round + static_cast<uint64_t>(n), n, w.size);
          std::fill_n(all->template as<float>(), n + 2 * margin, outside);
          for (int64_t i = 0; i < n; ++i) x[i] = number(round, w.rank, i);
          EXPECT_OK(comm.wait(comm.all_reduce(v, owners, DType::f32, Event()), soon()));
          for (int64_t i = 0; i < n; ++i) EXPECT(x[i] == documented_sum(nodes, round, i));
          for (int64_t i = 0; i < margin; ++i) {
            EXPECT(x[-1 - i] == outside);
            EXPECT(x[n + i] == outside);
          }
        }
      }
      return std::string();
    }));
  }
}

TEST_CASE("sums in the order of a tree, wherever the ranks are") {
  for (const Case& c : std::vector<Case>{{{4}, true, "shared"},
                                         {{1, 1}, true, "network"},
                                         {{2, 2}, true, "network"},
                                         {{3, 1}, true, "network"},
                                         {{1, 3}, true, "network"},
                                         {{1, 2, 1}, true, "network"},
                                         {{4}, false, "network"}}) {
    CAPTURE(label(c));
    check_all_well(run_comms(
        {c.per_node, c.sockets},
        [&](Comm& comm, const World& w) {
          for (const int64_t n : {1000, 600'000}) {  // one message, and several
            auto v = comm.alloc("buffer", DType::f32, n);
            EXPECT_OK(v);
            float* x = v->template as<float>();
            for (int64_t i = 0; i < n; ++i) x[i] = number(7, w.rank, i);
            const Owners owners = cut(static_cast<uint64_t>(n), n, w.size);
            const uint64_t sent = comm.moved().sent;
            EXPECT_OK(comm.wait(comm.reduce_scatter(*v, owners, DType::f32, Event()), soon()));
            for (int64_t i = owners.offset(w.rank); i < owners.begin[w.rank + 1]; ++i)
              EXPECT(x[i] == tree_sum(0, w.size, 7, i));
            // One whole branch on each node: as much travels as without a tree.
            double bytes = static_cast<double>(comm.moved().sent - sent);
            EXPECT_OK(comm.all_sum({&bytes, 1}, soon()));
            if (c.per_node == std::vector<int>{2, 2}) EXPECT(bytes == static_cast<double>(n) * 4);

            for (int64_t i = 0; i < n; ++i) x[i] = number(8, w.rank, i);
            EXPECT_OK(comm.wait(comm.all_reduce(*v, owners, DType::f32, Event()), soon()));
            for (int64_t i = 0; i < n; ++i) EXPECT(x[i] == tree_sum(0, w.size, 8, i));
          }
          return std::string();
        },
        SumOrder::tree));
  }
  const auto refused = run_ranks({{3}}, [&](Control& control, const auto& sockets) {
    CommOptions tree = options();
    tree.order = SumOrder::tree;
    auto made = make_comm(control, sockets, tree);
    return made ? std::string() : made.error().what;
  });
  CHECK(has(refused[0], "no power of two"));
}

TEST_CASE("a slice of a buffer is a buffer; all_gather takes any type") {
  for (const Case& c : cases) {
    CAPTURE(label(c));
    check_all_well(run_comms({c.per_node, c.sockets}, [&](Comm& comm, const World& w) {
      auto bytes = comm.alloc("bytes", DType::u8, 999);
      EXPECT_OK(bytes);
      View part = bytes->slice(100, 301);
      const Owners owners = cut(3, 301, w.size);
      std::memset(bytes->p, 0xee, 999);
      for (int64_t i = 0; i < owners.count(w.rank); ++i)
        part.template as<uint8_t>()[owners.offset(w.rank) + i] = static_cast<uint8_t>(w.rank + i);
      EXPECT_OK(comm.wait(comm.all_gather(part, owners, Event()), soon()));
      for (int r = 0; r < w.size; ++r)
        for (int64_t i = 0; i < owners.count(r); ++i)
          EXPECT(part.template as<uint8_t>()[owners.offset(r) + i] == static_cast<uint8_t>(r + i));
      EXPECT(bytes->template as<uint8_t>()[99] == 0xee);
      EXPECT(bytes->template as<uint8_t>()[401] == 0xee);
      return std::string();
    }));
  }
}

TEST_CASE("sums, broadcasts and barriers") {
  for (const Case& c : cases) {
    CAPTURE(label(c));
    check_all_well(run_comms({c.per_node, c.sockets}, [&](Comm& comm, const World& w) {
      for (size_t n : {1ul, 3ul, 50'000ul}) {
        std::vector<double> x(n);
        for (size_t i = 0; i < n; ++i) x[i] = number(n, w.rank, static_cast<int64_t>(i)) / 3.0;
        EXPECT_OK(comm.all_sum(x, soon()));
        for (size_t i = 0; i < n; ++i) {
          double want = number(n, 0, static_cast<int64_t>(i)) / 3.0;
          for (int r = 1; r < w.size; ++r) want += number(n, r, static_cast<int64_t>(i)) / 3.0;
          EXPECT(x[i] == want);
        }
      }
      for (int root = 0; root < w.size; ++root) {
        for (int64_t n : {0, 1, 1'000'003}) {
          std::vector<uint8_t> data(n, static_cast<uint8_t>(w.rank == root ? 1 : 0));
          if (w.rank == root)
            for (int64_t i = 0; i < n; ++i) data[i] = static_cast<uint8_t>(i * 7 + root);
          EXPECT_OK(comm.broadcast(View(data.data(), DType::u8, {n}), root, soon()));
          for (int64_t i = 0; i < n; ++i) EXPECT(data[i] == static_cast<uint8_t>(i * 7 + root));
        }
      }
      for (int i = 0; i < 20; ++i) EXPECT_OK(comm.barrier(soon()));
      return std::string();
    }));
  }
}

// A buffer is written to again as soon as its ticket was waited for, while others may lag behind.
TEST_CASE("nobody touches a buffer that was handed back") {
  const std::vector<Layout> layouts{{{2}}, {{4}, true, 2}, {{4}, true, 1}, {{2, 2}, true, 2}};
  for (const Layout& layout : layouts) {
    check_all_well(run_comms(layout, [&](Comm& comm, const World& w) {
      constexpr int64_t n = 5000;
      const Owners even = cut(5, n, w.size);
      std::vector<View> views;
      for (int b = 0; b < 3; ++b) {
        auto v = comm.alloc("buffer", DType::f32, n);
        EXPECT_OK(v);
        views.push_back(*v);
      }
      for (int round = 0; round < 150; ++round) {
        std::vector<Ticket> tickets;
        for (View& v : views) {
          std::fill_n(v.template as<float>(), n, static_cast<float>(round + w.rank));
          tickets.push_back(comm.reduce_scatter(v, even, DType::f32, Event()));
        }
        for (size_t b = 0; b < views.size(); ++b) {
          float* x = views[b].template as<float>();
          EXPECT_OK(comm.wait(tickets[b], soon()));
          const float want = static_cast<float>(w.size * round + w.size * (w.size - 1) / 2);
          for (int64_t i = even.begin[w.rank]; i < even.begin[w.rank + 1]; ++i)
            EXPECT(x[i] == want);
          std::fill_n(x, n, -1.0f);
          std::fill_n(x + even.begin[w.rank], even.count(w.rank), static_cast<float>(w.rank));
          tickets[b] = comm.all_gather(views[b], even, Event());
        }
        for (size_t b = 0; b < views.size(); ++b) {
          EXPECT_OK(comm.wait(tickets[b], soon()));
          for (int r = 0; r < w.size; ++r)
            for (int64_t i = even.begin[r]; i < even.begin[r + 1]; ++i)
              EXPECT(views[b].template as<float>()[i] == static_cast<float>(r));
        }
        for (size_t b = 0; b < views.size(); ++b) {
          std::fill_n(views[b].template as<float>(), n, static_cast<float>(round + w.rank));
          tickets[b] = comm.all_reduce(views[b], even, DType::f32, Event());
        }
        for (size_t b = 0; b < views.size(); ++b) {
          float* x = views[b].template as<float>();
          EXPECT_OK(comm.wait(tickets[b], soon()));
          const float want = static_cast<float>(w.size * round + w.size * (w.size - 1) / 2);
          for (int64_t i = 0; i < n; ++i) EXPECT(x[i] == want);
          std::fill_n(x, n, -2.0f);
        }
        for (View& v : views)
          for (int64_t i = 0; i < n; ++i) EXPECT(v.template as<float>()[i] == -2.0f);
      }
      return std::string();
    }));
  }
}

TEST_CASE("what moved is counted, and traced") {
  check_all_well(run_ranks({{2, 2}}, [&](Control& control, const auto& sockets) {
    const World& w = control.world();
    Trace trace(w.rank);
    CommOptions o = options();
    o.trace = &trace;
    auto made = make_comm(control, sockets, o);
    EXPECT_OK(made);
    Comm& comm = **made;
    auto v = comm.alloc("x", DType::f32, 4000);
    EXPECT_OK(v);
    const Owners owners{{0, 1000, 2000, 3000, 4000}};
    EXPECT_OK(comm.wait(comm.reduce_scatter(*v, owners, DType::f32, Event()), soon()));
    // One partial sum to and from the other node; one of two parts of the node-mate's memory each.
    EXPECT(comm.moved().sent == 4000);
    EXPECT(comm.moved().received == 4000);
    EXPECT(comm.moved().shared == 8000);
    EXPECT_OK(comm.wait(comm.all_gather(*v, owners, Event()), soon()));
    EXPECT(comm.moved().sent == 8000);
    EXPECT(comm.moved().received == 8000);
    EXPECT(comm.moved().shared == 16000);
    // Both at once move as much as one after the other.
    EXPECT_OK(comm.wait(comm.all_reduce(*v, owners, DType::f32, Event()), soon()));
    EXPECT(comm.moved().sent == 16000);
    EXPECT(comm.moved().received == 16000);
    EXPECT(comm.moved().shared == 32000);

    const std::string path = "/tmp/comm_test." + std::to_string(getpid()) + ".json";
    EXPECT_OK(trace.write(path));
    const std::string text = read_file(path);
    unlink(path.c_str());
    EXPECT(has(text, "reduce_scatter 1 (16.0 kB)"));
    EXPECT(has(text, "all_gather 2 (16.0 kB)"));
    EXPECT(has(text, "all_reduce 3 (16.0 kB)"));
    return std::string();
  }));
}

namespace {

Places places_of(const World& w, bool shared, SumOrder order = SumOrder::nodes) {
  Places places;
  places.first.clear();
  for (const auto& node : groups(w, shared)) places.first.push_back(node.front());
  places.first.push_back(w.size);
  places.order = order;
  return places;
}

bool same(const Moved& a, const Moved& before, const Moved& expected) {
  return a.sent - before.sent == expected.sent &&
         a.received - before.received == expected.received &&
         a.shared - before.shared == expected.shared;
}

}  // namespace

TEST_CASE("what moves is known beforehand") {
  std::vector<Case> all = cases;
  all.push_back({{1, 3}, true, "network"});
  for (const SumOrder order : {SumOrder::nodes, SumOrder::tree}) {
    for (const Case& c : all) {
      const int ranks = std::accumulate(c.per_node.begin(), c.per_node.end(), 0);
      if (order == SumOrder::tree && ranks == 3) continue;
      CAPTURE(label(c));
      check_all_well(run_comms(
          {c.per_node, c.sockets},
          [&](Comm& comm, const World& w) {
            constexpr int64_t n = 300'000;
            auto v = comm.alloc("x", DType::f32, n);
            EXPECT_OK(v);
            const Places places = places_of(w, c.sockets, order);
            for (const DType wire : {DType::f32, DType::bf16}) {
              if (wire == DType::bf16 && order == SumOrder::tree) continue;
              const Owners owners = cut(11 + static_cast<uint64_t>(wire), n, w.size);
              Moved before = comm.moved();
              EXPECT_OK(comm.wait(comm.reduce_scatter(*v, owners, wire, Event()), soon()));
              EXPECT(same(comm.moved(), before,
                          moved_by_reduce_scatter(places, w.rank, owners, wire)));
              before = comm.moved();
              EXPECT_OK(comm.wait(comm.all_gather(*v, owners, Event()), soon()));
              EXPECT(same(comm.moved(), before, moved_by_all_gather(places, w.rank, owners, v->t)));
              before = comm.moved();
              EXPECT_OK(comm.wait(comm.all_reduce(*v, owners, wire, Event()), soon()));
              EXPECT(same(comm.moved(), before, moved_by_all_reduce(places, w.rank, owners, wire)));
              double sent =
                  static_cast<double>(moved_by_reduce_scatter(places, w.rank, owners, wire).sent);
              EXPECT_OK(comm.all_sum({&sent, 1}, soon()));
              if (order == SumOrder::nodes)
                EXPECT(sent == static_cast<double>(n) * (places.nodes() - 1) * bytes_of(wire));
            }
            return std::string();
          },
          order));
    }
  }
}

TEST_CASE("with bf16 on the wire each node's part is rounded once, and half as much travels") {
  for (const Case& c : std::vector<Case>{{{3}, true, "shared"},
                                         {{1, 1}, true, "network"},
                                         {{2, 2}, true, "network"},
                                         {{1, 3}, true, "network"},
                                         {{1, 1, 2}, true, "network"}}) {
    CAPTURE(label(c));
    check_all_well(run_comms({c.per_node, c.sockets}, [&](Comm& comm, const World& w) {
      const auto nodes = groups(w, true);
      for (const int64_t n : {1, 999, 70'001, 900'001}) {  // one message, and several
        auto v = comm.alloc("x", DType::f32, n);
        EXPECT_OK(v);
        float* x = v->template as<float>();
        uint64_t sent[2];
        for (const DType wire : {DType::f32, DType::bf16}) {
          for (int64_t i = 0; i < n; ++i) x[i] = number(5, w.rank, i);
          const Owners owners = cut(static_cast<uint64_t>(n), n, w.size);
          const uint64_t before = comm.moved().sent;
          EXPECT_OK(comm.wait(comm.reduce_scatter(*v, owners, wire, Event()), soon()));
          sent[wire == DType::bf16] = comm.moved().sent - before;
          for (int64_t i = owners.offset(w.rank); i < owners.begin[w.rank + 1]; ++i) {
            float total = 0;
            double size = 0;
            for (size_t k = 0; k < nodes.size(); ++k) {
              float part = documented_sum({nodes[k]}, 5, i);
              size += std::abs(part);
              if (wire == DType::bf16 && nodes.size() > 1) part = float_of(bf16_of(part));
              total = k == 0 ? part : total + part;
            }
            EXPECT(x[i] == total);
            // bf16 has 8 significant bits: each part is off by 2^-8 of itself at most.
            const float exact = documented_sum(nodes, 5, i);
            EXPECT(std::abs(x[i] - exact) <= size * (1.0 / 256 + 1e-6));
          }
        }
        EXPECT(sent[0] == 2 * sent[1]);
        // Handed out, the sums have the same bits.
        std::vector<float> sums(static_cast<size_t>(n));
        for (int64_t i = 0; i < n; ++i) {
          for (size_t k = 0; k < nodes.size(); ++k) {
            const float part = documented_sum({nodes[k]}, 5, i);
            sums[i] += nodes.size() > 1 ? float_of(bf16_of(part)) : part;
          }
          x[i] = number(5, w.rank, i);
        }
        const Owners owners = cut(static_cast<uint64_t>(n) + 1, n, w.size);
        EXPECT_OK(comm.wait(comm.all_reduce(*v, owners, DType::bf16, Event()), soon()));
        EXPECT(std::equal(sums.begin(), sums.end(), x));
      }
      return std::string();
    }));
  }
}

TEST_CASE("two communicators in turn") {
  check_all_well(run_ranks({{2, 1}}, [&](Control& control, const auto& sockets) {
    for (int i = 0; i < 2; ++i) {
      auto made = make_comm(control, sockets, options());
      EXPECT_OK(made);
      double x = 1;
      EXPECT_OK((*made)->all_sum({&x, 1}, soon()));
      EXPECT(x == 3);
    }
    return std::string();
  }));
}

TEST_CASE("the address to use") {
  const std::vector<LocalAddress> own{{"lo", "127.0.0.1"}, {"eth7", "192.0.2.1"}};
  CHECK(choose_address("eth7", own, {}).value() == "192.0.2.1");
  auto none = choose_address("eth9", own, {});
  REQUIRE_FALSE(none);
  CHECK(none.error().what == "interface eth9 has no address here; there are: lo eth7");
  // The peer has the same addresses: the same network stack, so loopback leads there.
  CHECK(choose_address("", own, {"127.0.0.1", "192.0.2.1"}).value() == "127.0.0.1");
  // Another loopback address is reached from the interface lo.
  CHECK(choose_address("", {{"lo", "127.0.0.1"}}, {"127.0.0.9"}).value() == "127.0.0.1");
}
