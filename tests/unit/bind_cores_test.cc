// CPUs and memory: each rank's share, also where the machine says little or the step has little.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <set>

#include "plans.h"
#include "real_machines.h"

using namespace trainlaunch;

namespace {

std::string all_why(const Plan& p) {
  std::string out;
  for (const RankPlan& r : p.ranks)
    for (const std::string& w : r.why) out += w + '\n';
  return out;
}

bool says(const Plan& p, const std::string& words) {
  return all_why(p).find(words) != std::string::npos;
}

Machine loaded(const std::string& text) {
  auto m = load_text(text, "x");
  REQUIRE_MESSAGE(m.has_value(), (m ? "" : m.error().what));
  return std::move(*m);
}

std::string nccl_gpu(const char* bus) {
  return "<pci busid=\"0000:" + std::string(bus) +
         ":00.0\" class=\"0x030200\" vendor=\"0x10de\"><gpu dev=\"0\"/></pci>";
}

// As NCCL writes it where the kernel says numa_node -1.
std::string nccl_without_nodes() {
  return "<system version=\"1\"><cpu numaid=\"-1\" affinity=\"ffffffff,ffffffff\">" +
         nccl_gpu("01") + nccl_gpu("02") +
         "<pci busid=\"0000:03:00.0\" class=\"0x020700\" vendor=\"0x15b3\"><nic>"
         "<net name=\"mlx5_0\" speed=\"200000\" port=\"1\"/></nic></pci></cpu></system>";
}

std::string matrix(const char* cpus0, const char* cpus1) {
  return std::string("\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\n") +
         "GPU0\t X \tPHB\tPHB\t" + cpus0 + "\tN/A\nGPU1\tPHB\t X \tPHB\t" + cpus1 + "\tN/A\n";
}

}  // namespace

TEST_CASE("cores of one socket only: no rank without cores, none outside, the near ones first") {
  // rapidsai/dask-cuda issue 1381
  Allocation a;
  a.cores = range(0, 31);
  const Plan p = make(hgx_h100(), a);
  const CpuSet allowed = *parse_cpus("0-31,112-143");
  for (const RankPlan& r : p.ranks) {
    CHECK(r.cpus.any());
    CHECK((r.cpus & ~allowed).none());
    CHECK(r.cpus.count() == 8);
  }
  CHECK(disjoint(p));
  CHECK(p.ranks[0].mem == 0);
  // Memory beside the GPU would be far from the cores: left to the kernel.
  CHECK_FALSE(p.ranks[4].mem.has_value());
  CHECK(std::count_if(p.warnings.begin(), p.warnings.end(),
                      [](const Warning& w) { return w.code == "cores-far"; }) == 1);
  // Those that live there have neighbouring cores.
  CHECK(cpus(p, 0) == "0-3,112-115");
}

TEST_CASE("a rank from afar does not take the only core beside another's GPU") {
  Machine m = box({2, 1, 2, 1, 2});
  add_gpu(m, 0);
  add_gpu(m, 1);
  Allocation a;
  a.cores = {1, 2};
  Plan p = make(m, a);
  CHECK(cpus(p, 0) == "1");
  CHECK(cpus(p, 1) == "2");
  a.cores = {2, 3};
  p = make(m, a);
  CHECK(cpus(p, 0) == "3");
  CHECK(cpus(p, 1) == "2");
}

TEST_CASE("more ranks than cores share the near ones") {
  Machine m = box({2, 1, 1, 1, 1});
  for (int g = 0; g < 4; ++g) add_gpu(m, g / 2);
  const Plan p = make(m);
  CHECK(cpus(p, 0) == "0");
  CHECK(cpus(p, 1) == "0");
  CHECK(cpus(p, 2) == "1");
  CHECK(cpus(p, 3) == "1");
  CHECK(warns(p, "cores-few"));
  CHECK_FALSE(warns(p, "cores-far"));
}

TEST_CASE("low-noise nodes keep the first core of each cache from jobs") {
  Machine m = box({1, 4, 16, 2, 8});
  for (int g = 0; g < 8; ++g) {
    add_gpu(m, g / 2);
    m.gpus.back().place.cpus =
        *parse_cpus(std::to_string(g * 8) + "-" + std::to_string(g * 8 + 7) + "," +
                    std::to_string(64 + g * 8) + "-" + std::to_string(64 + g * 8 + 7));
  }
  Allocation a;
  a.cores.emplace();
  for (int c = 0; c < 64; ++c)
    if (c % 8 != 0) a.cores->push_back(c);
  const Plan p = make(m, a);
  CHECK(cpus(p, 0) == "1-7,65-71");
  CHECK(cpus(p, 7) == "57-63,121-127");
}

TEST_CASE("one thread of each core, and only what may be used") {
  Policy policy;
  policy.one_thread = true;
  CHECK(cpus(make(hgx_h100(), {}, policy), 0) == "0-13");
  Machine m = hgx_h100();
  m.allowed = *parse_cpus("112-223");  // second threads only
  CHECK(cpus(make(m, {}, policy), 0) == "112-125");
}

TEST_CASE("cpu=numa gives the whole memory node, cpu=off leaves the mask alone") {
  Policy policy;
  policy.cpu = CpuMode::numa;
  Plan p = make(dgx_a100(), {}, policy);
  CHECK(cpus(p, 0) == "48-63,176-191");
  CHECK(cpus(p, 1) == "48-63,176-191");
  policy.cpu = CpuMode::off;
  p = make(dgx_a100(), {}, policy);
  CHECK(p.ranks[0].keep_cpus);
  CHECK(p.ranks[0].mem == 3);
  policy.mem = MemMode::off;
  CHECK_FALSE(make(dgx_a100(), {}, policy).ranks[0].mem.has_value());
}

TEST_CASE("no memory nodes, and all CPUs beside every GPU: nothing is known of places") {
  for (const std::string& text : {nccl_without_nodes(), matrix("0-63", "0-63")}) {
    const Machine m = loaded(text);
    REQUIRE(m.numa.empty());
    const Plan p = make(m);
    CHECK(warns(p, "locality-unknown"));
    CHECK_FALSE(says(p, "beside the GPU"));
    CHECK_FALSE(says(p, "one memory node"));
    CHECK(says(p, "memory left alone: the machine names no memory nodes"));
    CHECK(disjoint(p));
    for (const RankPlan& r : p.ranks) {
      CHECK(r.cpus.count() == 32);
      CHECK_FALSE(r.mem.has_value());
    }
  }
  // NCCL's file does not say that these share a memory node; the matrix says host bridge.
  CHECK(make(loaded(nccl_without_nodes())).ranks[0].gpu_nic == Level::sys);
  CHECK(make(loaded(matrix("0-63", "0-63"))).ranks[0].gpu_nic == Level::phb);
}

TEST_CASE("no memory nodes, and CPUs that differ between GPUs: these say where") {
  const Machine m = loaded(matrix("0-31", "32-63"));
  REQUIRE(m.numa.empty());
  Plan p = make(m);
  CHECK_FALSE(warns(p, "locality-unknown"));
  CHECK(cpus(p, 0) == "0-31");
  CHECK(cpus(p, 1) == "32-63");
  CHECK(says(p, "beside the GPU"));
  CHECK(says(p, "memory left alone: the machine names no memory nodes"));
  // One rank with both is in no one place.
  Allocation a;
  a.ranks = 1;
  p = make(m, a);
  CHECK(p.ranks[0].keep_cpus);
  CHECK(says(p, "CPUs left alone: its GPUs are beside different CPUs"));
}

TEST_CASE("one memory node, or one package and no node, is one place") {
  Machine m = box({1, 1, 8, 1, 8});
  add_gpu(m, -1);
  add_gpu(m, -1);
  for (const bool nodes : {true, false}) {
    if (!nodes) m.numa.clear();
    const Plan p = make(m);
    CHECK_FALSE(warns(p, "locality-unknown"));
    CHECK(says(p, "beside the GPU"));
    CHECK(says(p, nodes ? "there is one memory node" : "names no memory nodes"));
  }
  for (Core& c : m.cores) c.package = -1;
  CHECK(warns(make(m), "locality-unknown"));
  // Several packages, or several nodes of one.
  for (const Shape& s : {Shape{2, 1, 8, 1, 8}, Shape{1, 2, 8, 1, 8}}) {
    Machine several = box(s);
    add_gpu(several, -1);
    const Plan p = make(several);
    CHECK(warns(p, "locality-unknown"));
    CHECK(says(p, "memory left alone: which memory node its GPU is on is not known"));
  }
}

namespace {

std::vector<size_t> cores_of(const Machine& m, const Plan& p) {
  std::vector<size_t> out;
  for (const RankPlan& r : p.ranks) {
    out.push_back(0);
    for (const Core& c : m.cores) out.back() += r.cpus.test(static_cast<size_t>(c.cpus.front()));
  }
  return out;
}

std::vector<int> some_cores(std::mt19937& random, const Machine& m) {
  const auto all = static_cast<unsigned>(m.cores.size());
  std::vector<int> out;
  if (random() % 2) {  // a run
    const unsigned from = random() % all, length = 1 + random() % all;
    for (unsigned c = from; c < std::min(all, from + length); ++c)
      out.push_back(static_cast<int>(c));
  } else {  // anything
    const unsigned density = 1 + random() % 6;
    for (unsigned c = 0; c < all; ++c)
      if (random() % density == 0) out.push_back(static_cast<int>(c));
  }
  return out;
}

// The cores of `from` that are beside the GPU.
std::set<int> beside(const Machine& m, const std::vector<int>& from, int gpu) {
  const Place& place = m.gpus[static_cast<size_t>(gpu)].place;
  std::set<int> out;
  for (int c : from)
    for (int cpu : m.cores[static_cast<size_t>(c)].cpus)
      if (!m.knows(place) || place.cpus.test(static_cast<size_t>(cpu))) out.insert(c);
  return out;
}

// One GPU for each rank, and a core at least.
void check_shares(const Machine& m, const std::vector<int>& cores, const Plan& p) {
  const size_t ranks = p.ranks.size(), even = cores.size() / ranks;
  const std::vector<size_t> counts = cores_of(m, p);
  const std::vector<int> all = range(0, static_cast<int>(m.cores.size()) - 1);
  CHECK(disjoint(p));
  std::set<int> residents;
  for (size_t r = 0; r < ranks; ++r) {
    const std::set<int> mine = beside(m, cores, p.ranks[r].gpus[0]);
    residents.insert(mine.begin(), mine.end());
    // Fair: an even share, but for ranks with fewer cores beside their GPUs on the whole machine.
    const std::set<int> whole = beside(m, all, p.ranks[r].gpus[0]);
    size_t sharing = 0;
    for (const RankPlan& other : p.ranks) sharing += beside(m, all, other.gpus[0]) == whole;
    const size_t own = whole.empty() ? even : whole.size() / sharing;
    CHECK(counts[r] >= std::min(even, own));
    for (size_t o = 0; o < ranks; ++o) {
      const std::set<int> theirs = beside(m, cores, p.ranks[o].gpus[0]);
      if (beside(m, all, p.ranks[o].gpus[0]) == whole) CHECK(counts[o] <= counts[r] + 1);
      // More than an even share of what is beside its own GPU only.
      if (counts[o] > even + 1) CHECK(theirs.size() >= counts[o]);
    }
  }
  // Near: no core beside a rank's GPU is idle.
  for (int c : residents) {
    const auto cpu = static_cast<size_t>(m.cores[static_cast<size_t>(c)].cpus.front());
    CHECK(std::any_of(p.ranks.begin(), p.ranks.end(),
                      [&](const RankPlan& r) { return r.cpus.test(cpu); }));
  }
}

}  // namespace

TEST_CASE("two regions of a Frontier-like node in part: nobody has 7 cores while others have 1") {
  // Eight GPUs, each beside 8 cores; cores 14-30 for 7 ranks.
  Machine m = box({1, 4, 16, 1, 8});
  for (int g = 0; g < 8; ++g) {
    add_gpu(m, g / 2);
    m.gpus.back().place.cpus.reset();
    for (size_t cpu = 0; cpu < 8; ++cpu)
      m.gpus.back().place.cpus.set(static_cast<size_t>(g) * 8 + cpu);
  }
  Allocation a;
  a.ranks = 7;
  a.cores = range(14, 30);
  const Plan p = make(m, a);
  CHECK(cpus(p, 1) == "14-15");
  std::vector<size_t> counts = cores_of(m, p);
  CHECK(counts[2] + counts[3] == 7);
  std::sort(counts.begin(), counts.end());
  CHECK(counts == std::vector<size_t>{2, 2, 2, 2, 2, 3, 4});
  CHECK(disjoint(p));
}

TEST_CASE("one rank beside many cores, three beside fewer: each keeps what the machine has there") {
  Machine m = box({2, 1, 12, 1, 12});
  for (int g = 0; g < 4; ++g) add_gpu(m, g / 3);
  CHECK(cores_of(m, make(m)) == std::vector<size_t>{4, 4, 4, 12});
  // A step with little of the first socket is not the machine's fault.
  Allocation a;
  a.cores = range(10, 23);
  const Plan p = make(m, a);
  CHECK(cores_of(m, p) == std::vector<size_t>{3, 3, 3, 5});
  CHECK(says(p, "some in another package than the GPU"));
  CHECK(warns(p, "cores-far"));
}

TEST_CASE("where packages are not known, none is named") {
  // rapidsai/dask-cuda issue 1381: the other GPUs' CPUs are not the job's.
  const Machine m = loaded(
      "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n"
      "GPU0\t X \tSYS\t0-15\t0\n"
      "GPU1\tSYS\t X \t\t1\n");
  const Plan p = make(m);
  CHECK(cores_of(m, p) == std::vector<size_t>{8, 8});
  CHECK(warns(p, "cores-far"));
  CHECK(says(p, "in another memory node than the GPU"));
  CHECK_FALSE(says(p, "package"));
}

TEST_CASE("any cores of real machines are shared fairly, and near") {
  const std::filesystem::path dir = real_machines();
  if (dir.empty()) return;
  std::mt19937 random(5);
  for (const char* file :
       {"hwloc/mpibind-eas-tioga.xml", "hwloc/mpibind-coral-lassen.xml",
        "hwloc/mpibind-epyc-corona.xml", "hwloc/hwloc2-nvidiaDGX2.xml",
        "hwloc/fluxcore-tuo.CPX.xml", "nccl/aws-p4d-24xl-topo.xml", "nccl/azure-ndv4-topo.xml",
        "nccl/rccl-topo_8p_rome_n4.xml", "topo-m/turin-h200.topo.txt", "topo-m/dgx-a100.topo.txt",
        "topo-m/a100x4-nps4-nonic.topo.txt", "topo-m/v100x8-all-on-one-socket.topo.txt"}) {
    CAPTURE(file);
    const Machine m = read_machine(dir / file);
    for (int round = 0; round < 60; ++round) {
      Allocation a;
      a.cores = some_cores(random, m);
      a.ranks = 1 + static_cast<int>(random() % m.gpus.size());
      if (a.cores->size() < static_cast<size_t>(a.ranks)) continue;
      CAPTURE(a.ranks);
      CAPTURE(round);
      // As many GPUs, so that each rank has one.
      a.gpus = range(0, a.ranks - 1);
      const Plan p = make(m, a);
      check_shares(m, *a.cores, p);
    }
  }
}

TEST_CASE("a file that names no CPUs is not Slurm's fault") {
  const Machine m = loaded("<system version=\"1\"><cpu numaid=\"0\">" + nccl_gpu("01") +
                           nccl_gpu("02") + "</cpu></system>");
  Allocation a;
  for (const bool cores : {false, true}) {
    if (cores) a.cores = range(0, 3);
    const Plan p = make(m, a);
    REQUIRE(warns(p, "cores-unknown"));
    for (const Warning& w : p.warnings) CHECK(w.fix.find("slurm.conf") == std::string::npos);
    for (const RankPlan& r : p.ranks) CHECK(r.keep_cpus);
  }
}
