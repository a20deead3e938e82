// What ends a call of a communicator: dead and late ranks, an abort, and arguments that are wrong.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comms.h"

using namespace trainlaunch;
using namespace trainlaunch::testing;

TEST_CASE("a killed rank is named by its neighbours, and nobody hangs") {
  struct Kill {
    std::vector<int> per_node;
    std::vector<int> witnesses;  // who is told directly
  };
  for (const Kill& k : {Kill{{2}, {0}}, Kill{{3}, {0, 2}}, Kill{{1, 1}, {0}}, Kill{{2, 2}, {0}}}) {
    const auto results = run_comms({k.per_node}, [&](Comm& comm, const World& w) {
      auto v = comm.alloc("x", DType::f32, 100'000);
      EXPECT_OK(v);
      const Owners owners = [&] {
        Owners even;
        for (int r = 0; r <= w.size; ++r) even.begin.push_back(100'000 * r / w.size);
        return even;
      }();
      EXPECT_OK(comm.barrier(soon()));
      if (w.rank == 1) raise(SIGKILL);
      const auto start = Clock::now();
      Status s = comm.wait(comm.reduce_scatter(*v, owners, DType::f32, Event()), soon());
      EXPECT(!s);
      EXPECT(Clock::now() - start < std::chrono::seconds(10));
      Status later = comm.barrier(soon());
      EXPECT(!later);
      EXPECT(later.error().what == s.error().what);
      return s.error().what;
    });
    for (size_t r = 0; r < results.size(); ++r) {
      CAPTURE(r);
      CAPTURE(results[r]);
      if (r == 1) {
        CHECK(results[r] == "signal 9");
        continue;
      }
      CHECK(has(results[r], "reduce_scatter"));
      if (std::find(k.witnesses.begin(), k.witnesses.end(), r) != k.witnesses.end())
        CHECK(has(results[r], "rank 1 on n"));
    }
  }
}

TEST_CASE("a rank that is killed while sums are handed out is named, and nobody hangs") {
  const auto results = run_comms({{3}}, [&](Comm& comm, const World& w) {
    constexpr int64_t n = 300'000;
    auto v = comm.alloc("x", DType::f32, n);
    EXPECT_OK(v);
    EXPECT_OK(comm.barrier(soon()));
    std::thread killer;
    if (w.rank == 1)
      killer = std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        raise(SIGKILL);
      });
    const auto start = Clock::now();
    Status s;
    while (s) {
      EXPECT(Clock::now() - start < std::chrono::seconds(10));
      s = comm.wait(comm.all_reduce(*v, {{0, n / 3, 2 * n / 3, n}}, DType::f32, Event()), soon());
    }
    return s.error().what;
  });
  CHECK(results[1] == "signal 9");
  for (const size_t r : {0, 2}) {
    CAPTURE(results[r]);
    CHECK(has(results[r], "all_reduce"));
    CHECK(has(results[r], "rank 1 on n1 has died"));
  }
}

TEST_CASE("a deadline that passes names who is late") {
  for (const std::vector<int>& per_node : {std::vector{2}, std::vector{1, 1}}) {
    const auto results = run_comms({per_node}, [&](Comm& comm, const World& w) {
      auto v = comm.alloc("x", DType::f32, 1000);
      EXPECT_OK(v);
      EXPECT_OK(comm.barrier(soon()));
      if (w.rank == 1) {
        // Late; what it finds then is a communicator that has failed.
        std::this_thread::sleep_for(std::chrono::milliseconds(700));
        const Ticket t = comm.reduce_scatter(*v, {{0, 500, 1000}}, DType::f32, Event());
        EXPECT(!comm.wait(t, soon()));
        return std::string();
      }
      const Ticket t = comm.reduce_scatter(*v, {{0, 500, 1000}}, DType::f32, Event());
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it runs in the background
      const auto start = Clock::now();
      Status s = comm.wait(t, Deadline::in(Seconds(0.2)));
      EXPECT(!s);
      EXPECT(Clock::now() - start < std::chrono::seconds(5));
      EXPECT(has(s.error().what, "timed out waiting for rank 1 on n"));
      return std::string();
    });
    check_all_well(results);
  }
}

TEST_CASE("abort() unblocks this rank and its peers") {
  for (const std::vector<int>& per_node : {std::vector{3}, std::vector{1, 1}, std::vector{2, 1}}) {
    check_all_well(run_comms({per_node}, [&](Comm& comm, const World& w) {
      EXPECT_OK(comm.barrier(soon()));
      if (w.rank == w.size - 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        comm.abort();
        Status s = comm.barrier(soon());
        EXPECT(!s);
        EXPECT(has(s.error().what, "aborted"));
        return std::string();
      }
      std::thread other;
      if (w.rank == 0 && w.size > 2)
        other = std::thread([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          comm.abort();
        });
      const auto start = Clock::now();
      EXPECT(!comm.barrier(soon()));
      EXPECT(Clock::now() - start < std::chrono::seconds(5));
      if (other.joinable()) other.join();
      return std::string();
    }));
  }
}

TEST_CASE("what is thrown where a call is run is an error of that call, on all ranks") {
  struct Throwing final : Event::Impl {
    Result<bool> done() override { throw std::bad_alloc(); }
    void* native() override { return nullptr; }
  };
  for (const Layout& layout : {Layout{{2}}, Layout{{1, 1}}}) {
    check_all_well(run_comms(layout, [](Comm& comm, const World& w) -> std::string {
      auto v = comm.alloc("v", DType::f32, 4096);
      EXPECT_OK(v);
      const bool throws = w.rank == 1;
      Event after = throws ? Event(std::make_shared<Throwing>()) : Event();
      Owners halves;
      halves.begin = {0, 2048, 4096};
      const Ticket t = comm.all_reduce(*v, halves, DType::f32, std::move(after));
      const Status waited = comm.wait(t, soon());
      EXPECT(!waited);
      EXPECT(!throws || has(waited.error().what, "memory"));
      EXPECT(!comm.barrier(soon()));
      return "";
    }));
  }
}

TEST_CASE("different calls are noticed") {
  const auto results = run_comms({{2}}, [&](Comm& comm, const World& w) {
    auto v = comm.alloc("x", DType::f32, 100);
    EXPECT_OK(v);
    const Owners owners{{0, 50, 100}};
    const Ticket t = w.rank == 0 ? comm.reduce_scatter(*v, owners, DType::f32, Event())
                                 : comm.all_gather(*v, owners, Event());
    Status s = comm.wait(t, soon());
    EXPECT(!s);
    return s.error().what;
  });
  CHECK((has(results[0], "same calls") || has(results[0], "rank 1 on n1 failed")));
  CHECK((has(results[1], "same calls") || has(results[1], "rank 0 on n1 failed")));
}

TEST_CASE("wrong arguments are errors") {
  using Wrong = std::function<Ticket(Comm&, View)>;
  const std::vector<std::pair<Wrong, std::string>> wrongs{
      {[](Comm& c, View v) {
         return c.all_gather(v, {{0, 50}}, Event());
       },
       "owners"},
      {[](Comm& c, View v) {
         return c.all_gather(v, {{0, 50, 99}}, Event());
       },
       "owners"},
      {[](Comm& c, View v) {
         return c.all_gather(v, {{0, 150, 100}}, Event());
       },
       "owners"},
      {[](Comm& c, View v) {
         return c.reduce_scatter(v, {{0, 50, 100}}, DType::f64, Event());
       },
       "only f32 and bf16 are sent"},
      {[](Comm& c, View v) {
         return c.all_reduce(View(v.p, DType::i32, {100}), {{0, 50, 100}}, DType::f32, Event());
       },
       "only f32 is summed"},
      {[](Comm& c, View) {
         static std::vector<float> elsewhere(100);
         return c.all_gather(View(elsewhere.data(), DType::f32, {100}), {{0, 50, 100}}, Event());
       },
       "not in memory of this communicator"}};
  for (const auto& [wrong, text] : wrongs) {
    check_all_well(run_ranks({{2}}, [&](Control& control, const auto& sockets) {
      auto made = make_comm(control, sockets, options());
      EXPECT_OK(made);
      auto v = (*made)->alloc("x", DType::f32, 100);
      EXPECT_OK(v);
      Status s = (*made)->wait(wrong(**made, *v), soon());
      EXPECT(!s);
      EXPECT(has(s.error().what, text));
      return std::string();
    }));
  }
}

TEST_CASE("ranks that ask for different memory are told") {
  const auto results = run_ranks({{2}}, [&](Control& control, const auto& sockets) {
    auto made = make_comm(control, sockets, options());
    EXPECT_OK(made);
    auto v = (*made)->alloc("weights", DType::f32, 100 + control.world().rank);
    EXPECT(!v);
    return v.error().what;
  });
  CHECK(results[0] == "memory for weights: rank 1 on n1: it asked for another size");
  CHECK(results[1] == "memory for weights: rank 0 on n1: it asked for another size");
}
