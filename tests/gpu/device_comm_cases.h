// What a communicator for a device's memory must do, whichever it is. Ranks are threads.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "tests/gpu/fake_device.h"
#include "tests/unit/expect.h"
#include "tests/unit/team.h"

namespace trainlaunch::testing {

using MakeComm =
    std::function<Result<std::unique_ptr<Comm>>(WorkerControl&, const CommOptions&, Device&)>;

inline Deadline soon() { return Deadline::in(Seconds(30)); }

using RankBody = std::function<std::string(WorkerControl&)>;
inline void check_ranks(int ranks, const RankBody& body) {
  std::mutex mutex;
  std::vector<std::string> results(static_cast<size_t>(ranks));
  Team(ranks).run([&](WorkerControl& control) {
    std::string text = body(control);
    std::lock_guard lock(mutex);
    results[static_cast<size_t>(control.world().rank)] = std::move(text);
  });
  for (int r = 0; r < ranks; ++r) {
    CAPTURE(r);
    CHECK(results[static_cast<size_t>(r)] == "");
  }
}

// Numbers of widely varying size, so that the order of a sum shows.
inline float number(int rank, int64_t i) {
  const Philox r = philox(5, {static_cast<uint32_t>(rank), static_cast<uint32_t>(i), 1, 2});
  return std::ldexp(static_cast<float>(unit(r[0]) - 0.5), static_cast<int>(r[1] % 20));
}
inline float tree_sum(int first, int count, int64_t i) {
  if (count == 1) return number(first, i);
  return tree_sum(first, count / 2, i) + tree_sum(first + count / 2, count / 2, i);
}

// One rank with its communicator, whose memory it fills and reads through the device.
struct DeviceRank {
  FakeDevice device;
  std::unique_ptr<Stream> stream = *device.stream();
  std::unique_ptr<Comm> comm;

  int rank() const { return comm->rank(); }
  Event put(View v, const std::vector<float>& numbers) {
    kept.push_back(numbers);
    device.upload(*stream, v, View(kept.back().data(), DType::f32, {v.size()}));
    return stream->record();
  }
  std::vector<float> get(View v) {
    std::vector<float> numbers(static_cast<size_t>(v.size()));
    device.download(*stream, View(numbers.data(), DType::f32, {v.size()}), v);
    (void)stream->record().wait(soon());
    return numbers;
  }
  std::deque<std::vector<float>> kept;  // until the copies are done
};

inline std::vector<float> numbers_of(int rank, int64_t n) {
  std::vector<float> all;
  for (int64_t i = 0; i < n; ++i) all.push_back(number(rank, i));
  return all;
}

// Equal parts, unequal ones, and one rank that owns nothing.
inline std::vector<Owners> ways_to_own(int ranks, int64_t n) {
  std::vector<Owners> ways(3);
  for (int r = 0; r <= ranks; ++r) {
    ways[0].begin.push_back(n * r / ranks);
    ways[1].begin.push_back(r == ranks ? n : n * r / ranks + r % 3);
    ways[2].begin.push_back(r <= 1 ? 0 : n * r / ranks);
  }
  return ways;
}

// Sums in `order`: the bits are those of the order where one is promised.
inline void check_sums_and_gathers(const MakeComm& make, int ranks, SumOrder order, DType wire,
                                   const std::function<float(int64_t)>& want, double tolerance) {
  constexpr int64_t n = 24 * 50;
  check_ranks(ranks, [&](WorkerControl& control) -> std::string {
    DeviceRank on;
    CommOptions options;
    options.timeout = Seconds(30);
    options.order = order;
    auto comm = make(control, options, on.device);
    EXPECT_OK(comm);
    on.comm = std::move(*comm);
    EXPECT(on.comm->size() == ranks);
    auto memory = on.comm->alloc("numbers", DType::f32, 2 * n);
    EXPECT_OK(memory);
    for (const float x : on.get(*memory)) EXPECT(x == 0);

    const View v = memory->slice(n / 2, n);
    const auto check = [&]() -> std::string {
      const std::vector<float> got = on.get(v);
      for (int64_t i = 0; i < n; ++i) {
        const float w = want(i);
        if (!(std::abs(got[static_cast<size_t>(i)] - w) <= tolerance))
          return "element " + std::to_string(i) + ": " + std::to_string(got[i]) + ", not " +
                 std::to_string(w);
      }
      return "";
    };
    for (const Owners& owners : ways_to_own(ranks, n)) {
      // One after the other without a wait between them.
      Event filled = on.put(v, numbers_of(on.rank(), n));
      const Ticket sum = on.comm->reduce_scatter(v, owners, wire, filled);
      const Ticket copy = on.comm->all_gather(v, owners, Event());
      EXPECT_OK(on.comm->wait(sum, soon()));
      EXPECT_OK(on.comm->wait(copy, soon()));
      if (auto wrong = check(); !wrong.empty()) return wrong;

      // Both at once.
      filled = on.put(v, numbers_of(on.rank(), n));
      EXPECT_OK(on.comm->wait(on.comm->all_reduce(v, owners, wire, filled), soon()));
      if (auto wrong = check(); !wrong.empty()) return wrong;
    }
    EXPECT_OK(on.comm->barrier(soon()));
    return "";
  });
}

inline void check_host_calls(const MakeComm& make, int ranks) {
  check_ranks(ranks, [&](WorkerControl& control) -> std::string {
    DeviceRank on;
    auto comm = make(control, {}, on.device);
    EXPECT_OK(comm);
    on.comm = std::move(*comm);
    for (const size_t n : {size_t{1}, size_t{3000}}) {
      std::vector<double> values(n), want(n);
      for (size_t i = 0; i < n; ++i) {
        values[i] = number(on.rank(), static_cast<int64_t>(i));
        want[i] = number(0, static_cast<int64_t>(i));
        for (int r = 1; r < ranks; ++r) want[i] += number(r, static_cast<int64_t>(i));
      }
      EXPECT_OK(on.comm->all_sum(values, soon()));
      EXPECT(values == want);
    }
    std::vector<uint8_t> bytes(2'500'000, static_cast<uint8_t>(on.rank()));
    const View v(bytes.data(), DType::u8, {static_cast<int64_t>(bytes.size())});
    for (const int root : {ranks - 1, 0}) {
      std::fill(bytes.begin(), bytes.end(), static_cast<uint8_t>(on.rank() + 7));
      EXPECT_OK(on.comm->broadcast(v, root, soon()));
      EXPECT(static_cast<size_t>(std::count(bytes.begin(), bytes.end(), root + 7)) == bytes.size());
    }
    EXPECT_OK(on.comm->barrier(soon()));
    return "";
  });
}

// A rank that does not come: the others' calls end, and later ones fail with the same words.
inline void check_missing_rank(const MakeComm& make) {
  check_ranks(2, [&](WorkerControl& control) -> std::string {
    DeviceRank on;
    CommOptions options;
    options.timeout = Seconds(1);
    auto comm = make(control, options, on.device);
    EXPECT_OK(comm);
    on.comm = std::move(*comm);
    auto memory = on.comm->alloc("numbers", DType::f32, 100);
    EXPECT_OK(memory);
    EXPECT_OK(on.comm->barrier(soon()));
    if (on.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      on.comm->abort();
      EXPECT(!on.comm->barrier(soon()));
      return "";
    }
    const Ticket t = on.comm->all_gather(*memory, {{0, 50, 100}}, Event());
    const Status late = on.comm->wait(t, Deadline::in(Seconds(0.3)));
    EXPECT(!late);
    EXPECT(late.error().what.find("all_gather") != std::string::npos);
    EXPECT(late.error().what.find("timed out") != std::string::npos);
    const Status after = on.comm->barrier(soon());
    EXPECT(!after);
    return "";
  });
}

// One rank gives up while another waits for it.
inline void check_abort(const MakeComm& make) {
  check_ranks(2, [&](WorkerControl& control) -> std::string {
    DeviceRank on;
    auto comm = make(control, {}, on.device);
    EXPECT_OK(comm);
    on.comm = std::move(*comm);
    auto memory = on.comm->alloc("numbers", DType::f32, 100);
    EXPECT_OK(memory);
    EXPECT_OK(on.comm->barrier(soon()));
    EXPECT_OK(control.barrier("all have passed", soon()));
    const auto begin = Clock::now();
    if (on.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      on.comm->abort();
      EXPECT(!on.comm->barrier(soon()));
    } else {
      const Ticket t = on.comm->all_gather(*memory, {{0, 50, 100}}, Event());
      EXPECT(!on.comm->wait(t, soon()));
    }
    EXPECT(Clock::now() - begin < Seconds(20));
    return "";
  });
}

// Arguments that do not fit.
inline void check_refusals(const MakeComm& make) {
  check_ranks(2, [&](WorkerControl& control) -> std::string {
    DeviceRank on;
    auto comm = make(control, {}, on.device);
    EXPECT_OK(comm);
    on.comm = std::move(*comm);
    auto memory = on.comm->alloc("numbers", DType::f32, 100);
    EXPECT_OK(memory);
    EXPECT(!on.comm->wait(99, soon()));
    EXPECT_OK(on.comm->barrier(soon()));
    EXPECT_OK(control.barrier("all have passed", soon()));
    std::vector<float> other(100);
    const Ticket t = on.comm->all_gather(View(other.data(), DType::f32, {100}), {{0, 50, 100}}, {});
    const Status refused = on.comm->wait(t, soon());
    EXPECT(!refused);
    EXPECT(refused.error().what.find("memory of this communicator") != std::string::npos);
    return "";
  });
}

}  // namespace trainlaunch::testing
