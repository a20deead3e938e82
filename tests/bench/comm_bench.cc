// How fast ranks move numbers, beside how fast this machine copies memory. One line for each size:
// the time of a reduce_scatter and an all_gather (together what others call an all-reduce), the
// bandwidth (bytes of the buffer / time), and that of memcpy on one rank in the same run; then what
// it cost this rank on average: processor time, and how often it slept. The time is the best of
// many runs, but no better than the machine is quiet; the costs depend less on others.
//
//   comm_bench [RANKS_ON_NODE_1 RANKS_ON_NODE_2 ...]      default: 2
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../unit/ranks.h"
#include "comm/comm.h"

using namespace trainlaunch;

namespace {

double seconds(Clock::time_point from) { return Seconds(Clock::now() - from).count(); }

struct Cost {
  double cpu_us = 0;
  double sleeps = 0;

  static Cost now() {
    rusage u{};
    getrusage(RUSAGE_SELF, &u);
    const auto us = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_usec);
    };
    return {us(u.ru_utime) + us(u.ru_stime), static_cast<double>(u.ru_nvcsw)};
  }
  Cost since(const Cost& start, int times) const {
    return {(cpu_us - start.cpu_us) / times, (sleeps - start.sleeps) / times};
  }
};

// The best of several runs, which all ranks do equally often.
template <class F>
double best_of(int runs, F&& once) {
  double best = 1e9;
  for (int i = 0; i < runs; ++i) best = std::min(best, once());
  return best;
}

double memcpy_bandwidth(size_t bytes) {
  auto host = make_host_device();
  auto from = host->allocate(bytes), to = host->allocate(bytes);
  if (!from || !to) return 0;
  const double time = best_of(20, [&] {
    const auto start = Clock::now();
    std::memcpy((*to)->data(), (*from)->data(), bytes);
    return seconds(start);
  });
  return static_cast<double>(bytes) / time / 1e9;
}

std::string bench(Control& control, const std::vector<int>& sockets) {
  const World& w = control.world();
  const Deadline end = Deadline::in(Seconds(300));
  CommOptions options;
  options.interface = "lo";
  auto made = make_comm(control, sockets, options);
  if (!made) return made.error().what;
  Comm& comm = **made;
  const bool speaks = w.rank == 0;

  for (int64_t mb : {1, 3, 4, 16, 64}) {
    const int64_t n = mb * 250'000;
    auto v = comm.alloc("buffer", DType::f32, n);
    if (!v) return v.error().what;
    Owners owners;
    for (int r = 0; r <= w.size; ++r) owners.begin.push_back(n * r / w.size);
    Status failed;
    const int times = mb < 16 ? 200 : 20;
    std::fill_n(v->as<float>(), n, 0.0f);
    const Cost before = Cost::now();
    const double time = best_of(times, [&] {
      if (failed) failed = comm.barrier(end);
      const auto start = Clock::now();
      if (failed) failed = comm.wait(comm.reduce_scatter(*v, owners, DType::f32, Event()), end);
      if (failed) failed = comm.wait(comm.all_gather(*v, owners, Event()), end);
      return seconds(start);
    });
    if (!failed) return failed.error().what;
    const Cost cost = Cost::now().since(before, times);
    if (!speaks) continue;
    std::printf("%4lld MB  %9.1f us  %6.2f GB/s   memcpy %6.2f GB/s   %9.1f us CPU  %5.1f sleeps\n",
                static_cast<long long>(mb), time * 1e6, static_cast<double>(mb) * 1e-3 / time,
                memcpy_bandwidth(static_cast<size_t>(n) * 4), cost.cpu_us, cost.sleeps);
    std::fflush(stdout);
  }

  const auto latency = [&](const char* what, auto&& call) -> Status {
    Status ok = comm.barrier(end);
    constexpr int times = 2000;
    const Cost before = Cost::now();
    const auto start = Clock::now();
    for (int i = 0; i < times && ok; ++i) ok = call();
    const Cost cost = Cost::now().since(before, times);
    if (speaks)
      std::printf("%s  %9.1f us  %34s %9.1f us CPU  %5.1f sleeps\n", what,
                  seconds(start) / times * 1e6, "", cost.cpu_us, cost.sleeps);
    return ok;
  };
  double x = 1;
  if (auto s = latency("barrier", [&] { return comm.barrier(end); }); !s) return s.error().what;
  if (auto s = latency("all_sum", [&] { return comm.all_sum({&x, 1}, end); }); !s)
    return s.error().what;
  std::fflush(stdout);
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  trainlaunch::testing::Layout layout;
  for (int i = 1; i < argc; ++i) layout.per_node.push_back(std::atoi(argv[i]));
  if (layout.per_node.empty()) layout.per_node = {2};
  for (int n : layout.per_node) {
    if (n > 0) continue;
    std::fprintf(stderr, "usage: comm_bench [RANKS_ON_NODE_1 RANKS_ON_NODE_2 ...]\n");
    return 2;
  }
  int exit = 0;
  for (const std::string& text : run_ranks(layout, bench)) {
    if (text.empty()) continue;
    std::fprintf(stderr, "comm_bench: %s\n", text.c_str());
    exit = 1;
  }
  return exit;
}
