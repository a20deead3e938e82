// How fast ranks move numbers: an all-reduce of buffers that are written anew before each round,
// beside memcpy on one rank and Open MPI's MPI_Allreduce in the same run, as it comes and with the
// settings that suit it (memory in huge pages, kept by malloc). Ranks have a processor each where
// there are enough, as under a launcher and under mpirun. For each size: the median time of the
// slowest rank, the bandwidth (bytes of the buffer / time), and the ratios to the others; then what
// it cost a rank on average, processor time and sleeps.
//
//   comm_bench [--rounds N] [--repeat N] [--mpi PROGRAM] [RANKS_ON_NODE_1 ...]     default: 2
//
// --repeat measures ours and theirs in turn so often, and takes medians. --mpi: a program made from
// comm_mpi.cc; without it one is built if mpicxx and mpirun are there.
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <vector>

#include "../unit/ranks.h"
#include "comm/comm.h"

using namespace trainlaunch;

namespace {

constexpr std::array<int64_t, 6> megabytes{1, 3, 4, 16, 64, 100};

double seconds(Clock::time_point from) { return Seconds(Clock::now() - from).count(); }

double median(std::vector<double> x) {
  if (x.empty()) return 0;
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

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
  void add(const Cost& start, const Cost& end, int times) {
    cpu_us += (end.cpu_us - start.cpu_us) / times;
    sleeps += (end.sleeps - start.sleeps) / times;
  }
};

double memcpy_time(size_t bytes, int rounds) {
  auto host = make_host_device();
  auto from = host->allocate(bytes), to = host->allocate(bytes);
  if (!from || !to) return 0;
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    std::memset((*from)->data(), i, bytes);
    const auto start = Clock::now();
    std::memcpy((*to)->data(), (*from)->data(), bytes);
    times.push_back(seconds(start));
  }
  return median(times);
}

// A processor for this rank alone, if there is one for each.
void take_processor(const World& w) {
  cpu_set_t mine, one;
  CPU_ZERO(&one);
  if (sched_getaffinity(0, sizeof(mine), &mine) != 0 || CPU_COUNT(&mine) < w.size) return;
  for (int cpu = 0, found = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &mine) && found++ == w.rank) CPU_SET(cpu, &one);
  sched_setaffinity(0, sizeof(one), &one);
}

// Rank 0: a line "BYTES SECONDS MEMCPY_SECONDS CPU_US SLEEPS" for each size, and for the latencies
// "NAME SECONDS".
std::string measure(Control& control, const std::vector<int>& sockets, int rounds) {
  const World& w = control.world();
  take_processor(w);
  const Deadline end = Deadline::in(Seconds(300));
  CommOptions options;
  options.interface = "lo";
  auto made = make_comm(control, sockets, options);
  if (!made) return "error " + made.error().what;
  Comm& comm = **made;
  std::ostringstream out;

  for (const int64_t mb : megabytes) {
    const int64_t n = mb * 250'000;
    auto v = comm.alloc("buffer", DType::f32, n);
    if (!v) return "error " + v.error().what;
    Owners owners;
    for (int r = 0; r <= w.size; ++r) owners.begin.push_back(n * r / w.size);
    Status failed;
    std::vector<double> times;
    Cost cost;
    for (int i = 0; i <= rounds; ++i) {
      std::fill_n(v->as<float>(), n, static_cast<float>(w.rank + i));
      if (failed) failed = comm.barrier(end);
      const Cost before = Cost::now();
      const auto start = Clock::now();
      const Ticket summed = comm.all_reduce(*v, owners, DType::f32, Event());
      if (failed) failed = comm.wait(summed, end);
      const double mine = seconds(start);
      if (i > 0) cost.add(before, Cost::now(), rounds);
      std::vector<double> all(static_cast<size_t>(w.size), 0.0);
      all[static_cast<size_t>(w.rank)] = mine;
      if (failed) failed = comm.all_sum(all, end);
      if (i > 0) times.push_back(*std::max_element(all.begin(), all.end()));
    }
    if (!failed) return "error " + failed.error().what;
    if (w.rank == 0)
      out << n * 4 << " " << median(times) << " " << memcpy_time(static_cast<size_t>(n) * 4, rounds)
          << " " << cost.cpu_us << " " << cost.sleeps << "\n";
  }

  const auto latency = [&](const char* what, auto&& call) -> Status {
    Status ok = comm.barrier(end);
    constexpr int times = 2000;
    const auto start = Clock::now();
    for (int i = 0; i < times && ok; ++i) ok = call();
    if (w.rank == 0) out << what << " " << seconds(start) / times << "\n";
    return ok;
  };
  double x = 1;
  if (auto s = latency("barrier", [&] { return comm.barrier(end); }); !s) return s.error().what;
  if (auto s = latency("all_sum", [&] { return comm.all_sum({&x, 1}, end); }); !s)
    return s.error().what;
  return out.str();
}

using Times = std::map<int64_t, std::vector<double>>;  // bytes -> seconds

void read_times(const std::string& command, Times& times) {
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return;
  long bytes = 0;
  double time = 0;
  while (std::fscanf(pipe, "%ld %lf", &bytes, &time) == 2) times[bytes].push_back(time);
  pclose(pipe);
}

// The program to compare with, or nothing.
std::string build_peer() {
  const char* source = std::getenv("TL_SOURCE");
  const std::string from = std::string(source ? source : "..") + "/tests/bench/comm_mpi.cc";
  const std::string to = "/tmp/comm_mpi." + std::to_string(getpid());
  const std::string build = "command -v mpirun > /dev/null 2>&1 && mpicxx -O2 -o " + to + " " +
                            from + " > /dev/null 2>&1";
  return std::system(build.c_str()) == 0 ? to : "";
}

std::string mpirun(const std::string& program, int ranks, int rounds) {
  std::string command = "mpirun --allow-run-as-root --oversubscribe -n " + std::to_string(ranks) +
                        " " + program + " " + std::to_string(rounds);
  for (const int64_t mb : megabytes) command += " " + std::to_string(mb * 1'000'000);
  return command + " 2> /dev/null";
}

constexpr const char* tuned =
    "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 MALLOC_MMAP_THRESHOLD_=8000000000 "
    "MALLOC_TRIM_THRESHOLD_=8000000000 ";

}  // namespace

int main(int argc, char** argv) {
  trainlaunch::testing::Layout layout;
  int rounds = 15, repeat = 3;
  std::string peer;
  bool given = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--rounds" && i + 1 < argc)
      rounds = std::atoi(argv[++i]);
    else if (word == "--repeat" && i + 1 < argc)
      repeat = std::atoi(argv[++i]);
    else if (word == "--mpi" && i + 1 < argc)
      peer = argv[++i], given = true;
    else
      layout.per_node.push_back(std::atoi(argv[i]));
  }
  if (layout.per_node.empty()) layout.per_node = {2};
  const bool wrong =
      std::any_of(layout.per_node.begin(), layout.per_node.end(), [](int n) { return n < 1; });
  if (wrong || rounds < 1 || repeat < 1) {
    std::fprintf(stderr,
                 "usage: comm_bench [--rounds N] [--repeat N] [--mpi PROGRAM] [RANKS_ON_NODE_1 "
                 "...]\n");
    return 2;
  }
  int ranks = 0;
  for (const int n : layout.per_node) ranks += n;
  if (!given) peer = build_peer();

  Times ours, copies, theirs, theirs_tuned, cpu, sleeps;
  std::map<std::string, std::vector<double>> latencies;
  for (int i = 0; i < repeat; ++i) {
    const auto results = run_ranks(layout, [&](Control& control, const std::vector<int>& sockets) {
      return measure(control, sockets, rounds);
    });
    for (const std::string& text : results) {
      if (!text.starts_with("error") && !text.starts_with("signal")) continue;
      std::fprintf(stderr, "comm_bench: %s\n", text.c_str());
      return 1;
    }
    std::istringstream in(results[0]);
    for (std::string line; std::getline(in, line);) {
      std::istringstream words(line);
      std::string name;
      double time = 0, copy = 0, us = 0, slept = 0;
      words >> name >> time;
      if (!(words >> copy >> us >> slept)) {
        latencies[name].push_back(time);
        continue;
      }
      const int64_t bytes = std::stoll(name);
      ours[bytes].push_back(time);
      copies[bytes].push_back(copy);
      cpu[bytes].push_back(us);
      sleeps[bytes].push_back(slept);
    }
    if (peer.empty()) continue;
    read_times(mpirun(peer, ranks, rounds), theirs);
    read_times(tuned + mpirun(peer, ranks, rounds), theirs_tuned);
  }
  if (!peer.empty() && !given) std::remove(peer.c_str());

  std::printf("all-reduce, GB/s (x: ours / theirs)\n");
  std::printf("    MB    ours    memcpy       Open MPI      tuned           us CPU  sleeps\n");
  for (const auto& [bytes, times] : ours) {
    const auto speed = [size = static_cast<double>(bytes)](const std::vector<double>& t) {
      return t.empty() ? 0 : size / median(t) / 1e9;
    };
    const double mine = speed(times);
    const auto beside = [&](const Times& other) {
      const auto found = other.find(bytes);
      const double theirs_speed = found == other.end() ? 0 : speed(found->second);
      if (theirs_speed > 0)
        std::printf("  %6.2f %5.2fx", theirs_speed, mine / theirs_speed);
      else
        std::printf("  %6s %6s", "-", "");
    };
    std::printf("%6lld  %6.2f", static_cast<long long>(bytes / 1'000'000), mine);
    beside(copies);
    beside(theirs);
    beside(theirs_tuned);
    std::printf("  %9.1f  %6.1f\n", median(cpu[bytes]), median(sleeps[bytes]));
  }
  for (const auto& [name, times] : latencies)
    std::printf("%s  %.1f us\n", name.c_str(), median(times) * 1e6);
  return 0;
}
