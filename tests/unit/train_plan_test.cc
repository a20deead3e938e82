// What a run is said to need, against what it takes.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "train/engine.h"
#include "train/memory.h"
#include "train/run_plan.h"
#include "train_runs.h"

using namespace trainlaunch;

namespace {

constexpr uint64_t MiB = uint64_t{1} << 20;

// A kernel's files as a test wants them.
struct FakeKernel {
  Temporary dir;
  KernelFiles files{dir / "proc", dir / "cgroup"};

  explicit FakeKernel(const std::string& groups, const std::string& available = "8388608") {
    put("proc/meminfo", "MemTotal: 9999999 kB\nMemAvailable:    " + available + " kB\n");
    put("proc/self/cgroup", groups);
  }
  void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(dir / path).parent_path());
    write_file(dir / path, text);
  }
  Allowance allowed(int ranks) const { return allowed_memory(ranks, files); }
};

Places on_one_node(int ranks) { return {{0, ranks}}; }

uint64_t bytes_of_item(const MemoryNeed& need, const std::string& what) {
  for (const MemoryNeed::Item& i : need.items)
    if (i.what == what) return i.bytes;
  return 0;
}

bool has_line(const RunPlan& plan, const std::string& begin) {
  return std::any_of(plan.lines.begin(), plan.lines.end(),
                     [&](const std::string& l) { return l.starts_with(begin); });
}

// About 4 million parameters.
RunConfig weighty(const Temporary& dir, const std::string& name) {
  RunConfig c = small(dir, name);
  c.model = {2, 8, 416, 64};
  c.train.steps = 3;
  c.train.global_batch = 4;
  c.checkpoint.every = 0;
  c.parallel.bucket_mib = 2;
  return c;
}

// Notes the memory of its process when the step that it waits for is about to change the weights.
class Weighed : public Worker {
 public:
  using Worker::Worker;
  void progress(uint64_t step, std::string_view phase) noexcept override {
    if (step == 2 && phase == "update") bytes = resident_share();
  }
  uint64_t bytes = 0;
};

// Three steps take what was planned, within 5 %.
void check_memory_taken(const RunConfig& c, int ranks) {
  std::fflush(stdout);
  const auto all = testing::run_ranks(
      {{ranks}}, [&](Control& control, const std::vector<int>& sockets) -> std::string {
        (void)!freopen("/dev/null", "w", stdout);
        Weighed worker(control, sockets);
        const uint64_t program = resident_share();
        const auto need = memory_need(c, control.world().rank, on_one_node(ranks), 1, program);
        if (!need) return need.error().what;
        if (auto s = train(c, worker); !s) return s.error().what;
        return std::to_string(worker.bytes) + " " + std::to_string(need->total());
      });
  // Ranks share pages of one segment: who is charged with them is chance, their sum is not.
  double taken = 0, planned = 0;
  for (const std::string& s : all) {
    std::istringstream numbers(s);
    double t = 0, p = 0;
    REQUIRE_MESSAGE((numbers >> t >> p), s);
    taken += t;
    planned += p;
  }
  INFO(ranks, " ranks, ", std::string(name_of(c.parallel.shard)), ", ",
       std::string(name_of(c.precision.compute)), ": ", taken / MiB, " of ", planned / MiB, " MiB");
  CHECK(taken == doctest::Approx(planned).epsilon(0.05));
}

}  // namespace

TEST_CASE("a rank may use its share of what the node has available") {
  const FakeKernel kernel("0::/\n");
  CHECK(kernel.allowed(1).bytes == 8192 * MiB);
  CHECK(kernel.allowed(4).bytes == 2048 * MiB);
  CHECK(kernel.allowed(4).limit == "MemAvailable of 8192.0 MiB, shared by 4 ranks");
}

TEST_CASE("control groups, those above too, leave less") {
  FakeKernel kernel("0::/job/step/task\n");
  kernel.put("cgroup/job/memory.max", "1073741824\n");
  kernel.put("cgroup/job/memory.current", "536870912\n");
  kernel.put("cgroup/job/memory.stat", "anon 5\ninactive_file 268435456\n");
  kernel.put("cgroup/job/step/task/memory.max", "max\n");
  kernel.put("cgroup/job/step/task/memory.current", "1000\n");
  CHECK(kernel.allowed(2).bytes == 384 * MiB);  // (1024 - 512 + 256) / 2
  CHECK(kernel.allowed(2).limit == "the control group's remaining 768.0 MiB, shared by 2 ranks");
}

TEST_CASE("control groups of the first version count as well") {
  FakeKernel kernel("3:cpuset:/x\n2:memory,foo:/job\n0::/\n");
  kernel.put("cgroup/memory/job/memory.limit_in_bytes", "104857600\n");
  kernel.put("cgroup/memory/job/memory.usage_in_bytes", "52428800\n");
  kernel.put("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(kernel.allowed(1).bytes == 50 * MiB);
}

TEST_CASE(
    "where the kernel does not say what is available, all that the machine has is the limit") {
  const KernelFiles nowhere{"/nonexistent", "/nonexistent"};
  const auto whole = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  CHECK(allowed_memory(1, nowhere).bytes == doctest::Approx(whole).epsilon(0.01));
  CHECK(allowed_memory(4, nowhere).bytes == doctest::Approx(whole / 4).epsilon(0.01));
  CHECK(allowed_memory(1, nowhere).limit.find("/nonexistent/meminfo") != std::string::npos);
  CHECK(resident_share(nowhere) == 0);
  CHECK(resident_share() > MiB);
}

TEST_CASE("memory by kind is what the formulas say") {
  Temporary dir;
  RunConfig c = weighty(dir, "run");
  const double N = 2 * (12 * 416 * 416 + 13 * 416) + (256 + 64) * 416 + 2 * 416;
  for (const int ranks : {1, 2, 4}) {
    c.parallel.shard = ShardPolicy::optimizer;
    auto need = memory_need(c, 0, on_one_node(ranks), 1, 5 * MiB);
    REQUIRE(need);
    CHECK(bytes_of_item(*need, "program and libraries") == 5 * MiB);
    CHECK(bytes_of_item(*need, "weights") == doctest::Approx(4 * N).epsilon(0.02));
    CHECK(bytes_of_item(*need, "gradients") == doctest::Approx(4 * N).epsilon(0.02));
    CHECK(bytes_of_item(*need, "optimizer state") == doctest::Approx(8 * N / ranks).epsilon(0.03));
    CHECK(bytes_of_item(*need, "copy for checkpoints") ==
          doctest::Approx(12 * N / ranks).epsilon(0.03));
    c.parallel.shard = ShardPolicy::none;
    need = memory_need(c, 0, on_one_node(ranks), 1, 0);
    REQUIRE(need);
    CHECK(bytes_of_item(*need, "optimizer state") == doctest::Approx(8 * N).epsilon(0.02));
  }
  auto plain = memory_need(c, 0, on_one_node(1), 1, 0);
  c.train.recompute = Recompute::block;
  auto again = memory_need(c, 0, on_one_node(1), 1, 0);
  REQUIRE(plain);
  REQUIRE(again);
  CHECK(bytes_of_item(*again, "activations") < bytes_of_item(*plain, "activations") * 0.6);
}

TEST_CASE("what does not fit is refused with what is missing, before anything is allocated") {
  Temporary dir;
  RunConfig c = weighty(dir, "run");
  c.memory = 0.03125;
  auto plan = plan_run(c, {2, 1});
  REQUIRE(plan);
  REQUIRE_FALSE(plan->fits);
  CHECK(plan->fits.error().exit == exit_code::usage);
  auto need = memory_need(c, 0, on_one_node(2), 1, 0);
  REQUIRE(need);
  const std::string missing = "are missing: it may use 32.0 MiB (memory of the configuration)";
  CHECK_MESSAGE(plan->fits.error().what.find(missing) != std::string::npos,
                plan->fits.error().what);
  const std::string said = train_as({2}, c);
  CHECK_MESSAGE(said.starts_with("2 "), said);
  CHECK_MESSAGE(said.find("a rank needs ") != std::string::npos, said);
  CHECK(said.find(missing) != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(c.run_dir + "/metrics.jsonl"));

  // Far more than any machine has costs nothing to ask for.
  c.memory = 0;
  c.model = {500, 64, 65536, 4096};
  const auto before = resident_share();
  plan = plan_run(c, {1, 1});
  REQUIRE(plan);
  CHECK_FALSE(plan->fits);
  CHECK(resident_share() < before + 64 * MiB);

  SUBCASE("the address space is a limit too") {
    const auto all = as_ranks({1}, [&](WorkerControl& control) -> Status {
      RunConfig limited = weighty(dir, "limited");
      const rlimit space{600 * MiB, 600 * MiB};
      setrlimit(RLIMIT_AS, &space);
      limited.model.layers = 240;
      return train(limited, control);
    });
    CHECK_MESSAGE(all[0].find("of the address space (ulimit -v)") != std::string::npos, all[0]);
  }
}

TEST_CASE("no size that the options allow overflows: it is planned, or refused by name") {
  Temporary dir;
  RunConfig c = weighty(dir, "run");
  constexpr int64_t most = std::numeric_limits<int>::max();
  c.train.global_batch = c.train.micro_batch = most;
  for (const int context : {1, 1024, 1 << 20}) {
    c.model = {1000, 1, 1 << 17, context};
    const auto plan = plan_run(c, {1, 1});
    REQUIRE_FALSE(plan);
    CHECK(plan.error().exit == exit_code::usage);
    CHECK_MESSAGE(plan.error().what.find("make train.micro-batch smaller") != std::string::npos,
                  plan.error().what);
  }
  // More of anything needs more memory, up to the largest that is planned.
  for (const Recompute recompute : {Recompute::none, Recompute::block}) {
    c.train.recompute = recompute;
    double before = 0;
    for (int64_t sequences = 1; sequences <= 256; sequences *= 16) {
      c.train.global_batch = c.train.micro_batch = sequences;
      c.model = {1000, 1, 1 << 17, 1 << 20};
      const auto need = memory_need(c, 0, on_one_node(1), 4096, 0);
      REQUIRE(need);
      CHECK(static_cast<double>(need->total()) > before);
      CHECK(bytes_of_item(*need, "activations") > 1e9 * static_cast<double>(sequences));
      before = static_cast<double>(need->total());
    }
  }
}

TEST_CASE("what grows with the number of micro-batches is in the plan") {
  Temporary dir;
  RunConfig c = weighty(dir, "run");
  c.memory = 1;
  c.train.global_batch = std::numeric_limits<int>::max();
  c.train.micro_batch = 1;
  for (const ShardPolicy policy : {ShardPolicy::optimizer, ShardPolicy::full}) {
    c.parallel.shard = policy;
    const auto plan = plan_run(c, {2, 2});  // and is planned at once, however many passes there are
    REQUIRE(plan);
    CHECK_FALSE(plan->fits);
    const auto need = memory_need(c, 0, on_one_node(2), 1, 0);
    REQUIRE(need);
    // A loss and a count of each in f64, and 16 bytes for each of the rank's own.
    CHECK(bytes_of_item(*need, "lists of samples") ==
          doctest::Approx(std::pow(2.0, 31) * (16 + 8)).epsilon(1e-3));
  }
}

TEST_CASE("what other nodes send has room in the plan") {
  Temporary dir;
  RunConfig c = weighty(dir, "run");
  const std::string item = "partial sums from other nodes";
  const auto room = [&](const Places& places) {
    const auto need = memory_need(c, 0, places, 1, 0);
    REQUIRE(need);
    return bytes_of_item(*need, item);
  };
  CHECK(room(on_one_node(4)) == 0);
  // Up to four pieces of 1 MiB of the owned part of a bucket, of each other node. The largest
  // bucket is one parameter of 4 x 416 x 416.
  const uint64_t bucket = 4 * (4 * 416 * 416), tile = 4096;
  CHECK(room({{0, 1, 2}}) <= 2 * MiB);
  CHECK(room({{0, 1, 2}}) >= bucket / 2);
  CHECK(room({{0, 1, 2, 3, 4}}) >= 3 * bucket / 4);
  CHECK(room({{0, 1, 2, 3, 4}}) <= 3 * (bucket / 4 + tile));
  c.model = {1, 8, 4096, 64};
  CHECK(room({{0, 1, 2}}) == 4 * MiB);
  CHECK(room({{0, 1, 2, 3, 4}}) == 12 * MiB);
}

TEST_CASE("scratch memory grows with the rows of a batch, not with the weights") {
  Temporary dir;
  RunConfig c = weighty(dir, "run");
  c.deterministic = Deterministic::canonical;  // by products of our own
  c.train.micro_batches = c.train.global_batch = 1;
  for (const DType type : {DType::f32, DType::bf16}) {
    c.precision.compute = type;
    c.model = {1, 16, 16384, 1024};
    for (const int threads : {1, 16}) {
      const auto need = memory_need(c, 0, on_one_node(1), threads, 0);
      REQUIRE(need);
      // Sums of one product of bf16 at most, besides what each thread copies.
      const double sums = type == DType::f32 ? 0 : 4.0 * 1024 * 65536;
      CHECK(bytes_of_item(*need, "scratch") < sums * 1.2 + 16e6 * (threads + 1));
    }
  }
}

TEST_CASE("a plan has everything, and ranks on several nodes a wire") {
  Temporary dir;
  const RunConfig c = weighty(dir, "run");
  auto one = plan_run(c, {1, 1}), four = plan_run(c, {4, 2});
  REQUIRE(one);
  REQUIRE(four);
  CHECK(one->fits);
  for (const char* line : {"world       1 rank on 1 node", "model       ", "batch       ",
                           "memory      of a rank", "  weights ", "  activations ", "  all ",
                           "allowed     ", "arithmetic  ", "ceiling     ", "step        "}) {
    CHECK_MESSAGE(has_line(*one, line), line);
    CHECK_MESSAGE(has_line(*four, line) == (line[0] != 'w'), line);
  }
  CHECK_FALSE(has_line(*one, "wire "));
  CHECK(has_line(*four, "wire        a node sends "));
  CHECK(has_line(*four, "assumed     12.5 GB/s of a node's network, 10 GB/s between ranks"));
  for (const Site& site : {Site{1, 2}, Site{4097, 1}, Site{1 << 20, 255}}) {
    const auto wrong = plan_run(c, site);
    REQUIRE_FALSE(wrong);
    CHECK(wrong.error().exit == exit_code::usage);
    CHECK(wrong.error().what.find("--nodes=") != std::string::npos);
  }
}

TEST_CASE("a run takes the memory that was planned") {
  if (resident_share() == 0) {
    MESSAGE("skipped: this kernel has no smaps_rollup");
    return;
  }
  Temporary dir;
  RunConfig c = weighty(dir, "run");
  check_memory_taken(c, 1);
  for (const ShardPolicy shard :
       {ShardPolicy::none, ShardPolicy::optimizer, ShardPolicy::gradients, ShardPolicy::full}) {
    c = weighty(dir, name_of(shard));
    c.parallel.shard = shard;
    check_memory_taken(c, 2);
  }
  c = weighty(dir, "bf16");
  c.precision.compute = DType::bf16;
  check_memory_taken(c, 2);
  c.run_dir = dir / "again";
  c.train.recompute = Recompute::block;
  check_memory_taken(c, 1);
}
