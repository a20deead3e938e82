// CPUs and memory: where the machine says little, and where the step has little.
#include <doctest/doctest.h>

#include "plans.h"

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
