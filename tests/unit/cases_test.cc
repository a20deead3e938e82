// Cases of wrong binding that people met and wrote about, each with what is right. The letter and
// number of a case are those of CASES.md beside the topology files; what a plan cannot express
// (socket interfaces, topology files, device cgroups) is tested where it is decided.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "env/env.h"
#include "plans.h"
#include "real_machines.h"

using namespace trainlaunch;
namespace fs = std::filesystem;

namespace {

const bool isolated = (isolate_hwloc(), true);

std::optional<Machine> machine_in(const std::string& file) {
  const fs::path dir = real_machines();
  if (dir.empty()) return std::nullopt;
  return read_machine(dir / file);
}

std::string variable(const std::vector<Variable>& list, const std::string& name) {
  for (const Variable& v : list)
    if (v.name == name) return v.value;
  return "";
}

std::string first_cpus(const Plan& p) {
  std::string out;
  for (const RankPlan& r : p.ranks) out += std::to_string(first_of(r.cpus)) + ' ';
  return out;
}

// Eight GPUs and their ports below four switches, every port PIX to both GPUs of its switch.
Machine tied_pairs() {
  Machine m = box({2, 1, 56, 2, 56});
  for (int g = 0; g < 8; ++g) add_gpu(m, g / 4);
  for (int n = 0; n < 8; ++n) add_nic(m, n / 4, LinkLayer::ethernet);
  for (int g = 0; g < 8; ++g)
    for (int n = g / 2 * 2; n < g / 2 * 2 + 2; ++n) link(m, g, n, Level::pix);
  return m;
}

// Polaris: one socket, four memory nodes, and GPU i on node 3 - i; two ports.
Machine polaris() {
  Machine m = box({1, 4, 8, 2, 8});
  for (int g = 0; g < 4; ++g) add_gpu(m, 3 - g);
  for (int n = 0; n < 2; ++n) add_nic(m, 2 * n, LinkLayer::ethernet, 200);
  for (int g = 0; g < 4; ++g)
    for (int n = 0; n < 2; ++n) link(m, g, n, Level::sys, 0);
  link(m, 1, 1, Level::phb);
  link(m, 3, 0, Level::phb);
  return m;
}

}  // namespace

TEST_CASE("A1: CPUs of one socket only (rapidsai/dask-cuda 1381)") {
  Machine m = box({2, 1, 28, 2, 28});
  for (int g = 0; g < 8; ++g) add_gpu(m, g / 4);
  Allocation a;
  a.cores = range(0, 15);
  const auto check = [&] {
    const Plan p = make(m, a);
    for (const RankPlan& r : p.ranks) {
      CHECK(r.cpus.count() == 4);
      CHECK((r.cpus & ~*parse_cpus("0-15,56-71")).none());
      CHECK(r.mem.has_value() == (r.gpus.front() < 4));
    }
    CHECK(disjoint(p));
    CHECK(warns(p, "cores-far"));
  };
  check();
  // The same seen from inside the job, where the far GPUs have no CPUs at all.
  for (size_t g = 4; g < 8; ++g) m.gpus[g].place = {};
  check();
}

TEST_CASE("A2: the place of a GPU is the hardware's, not the job's (rapidsai/dask-cuda 1358)") {
  Allocation a;
  a.cores = range(0, 63);  // without node 7 and 5, where GPUs 4-7 are
  const Plan p = make(dgx_a100(), a);
  CHECK(p.ranks[0].mem == 3);
  CHECK((p.ranks[0].cpus & ~*parse_cpus("48-63,176-191")).none());
  for (size_t r = 4; r < 8; ++r) CHECK_FALSE(p.ranks[r].mem.has_value());
  CHECK(warns(p, "cores-far"));
}

TEST_CASE("A4: a rank gets the CPUs of its GPU in the first place (NVIDIA/nccl-tests 57)") {
  const auto m = machine_in("nccl-as-hwloc/aws-p4d-24xl-topo.hwloc.xml");
  if (!m) return;
  const Plan p = make(*m);
  REQUIRE(p.ranks.size() == 8);
  for (size_t r = 0; r < 8; ++r) {
    CHECK(p.ranks[r].cpus.count() == 12);
    CHECK((p.ranks[r].cpus & ~*parse_cpus(r < 4 ? "0-23,48-71" : "24-47,72-95")).none());
  }
  CHECK(disjoint(p));
}

TEST_CASE("A5: no rank loses sight of its peers (open-mpi/ompi 11949, CliMA/slurm-buildkite 54)") {
  const Machine m = hgx_h100();
  const Environment env = environment(m, make(m), {});
  CHECK(variable(env.common, "CUDA_VISIBLE_DEVICES") == "0,1,2,3,4,5,6,7");
  for (const auto& list : env.ranks) CHECK(variable(list, "CUDA_VISIBLE_DEVICES").empty());
}

TEST_CASE("A6: per-task binding by Slurm is not masked again (NVIDIA/nccl-tests 300)") {
  const Machine m = hgx_h100();
  Allocation a;
  a.asked.gpu = true;
  const Plan p = make(m, a);
  CHECK(warns(p, "gpu-bind-asked"));
  const Environment env = environment(m, p, {});
  CHECK(variable(env.common, "CUDA_VISIBLE_DEVICES").empty());
  for (const auto& list : env.ranks) CHECK(variable(list, "CUDA_VISIBLE_DEVICES").empty());
}

TEST_CASE("A8: a job of one core reads the whole machine (AC922)") {
  const auto m = machine_in("hwloc/mpibind-coral-lassen.xml");
  if (!m) return;
  Allocation a;
  a.gpus = {2};
  a.cores.emplace();
  for (size_t c = 0; c < m->cores.size(); ++c)
    if (m->cores[c].numa == 8) a.cores->push_back(static_cast<int>(c));
  a.cores->resize(1);
  const Plan p = make(*m, a);
  REQUIRE(p.ranks.size() == 1);
  CHECK(p.ranks[0].mem == 8);
  REQUIRE(p.ranks[0].gpu_nic.has_value());
  CHECK(*p.ranks[0].gpu_nic <= Level::node);
  for (int n : p.ranks[0].nics) CHECK(m->nics[static_cast<size_t>(n)].place.numa == 8);
}

TEST_CASE("B10: Polaris is reversed (argonne-lcf/GettingStarted 13, oumi-ai/oumi 307)") {
  Plan p = make(polaris());
  CHECK(gpus(p) == range(0, 3));
  CHECK(cpus(p, 0) == "24-31,56-63");
  CHECK(cpus(p, 3) == "0-7,32-39");
  CHECK(p.ranks[0].mem == 3);
  // The two GPUs that are near no port get one each.
  CHECK(nics(p) == std::vector<int>{0, 1, 1, 0});
  Policy closest;
  closest.gpu = GpuMode::closest;
  p = make(polaris(), {}, closest);
  CHECK(gpus(p) == std::vector<int>{3, 2, 1, 0});
  CHECK(cpus(p, 0) == "0-7,32-39");
}

TEST_CASE("B11: LUMI, GCDs on 3,3,1,1,0,0,2,2, and a core of each cache is kept from jobs") {
  const auto m = machine_in("hwloc/mpibind-eas-tioga.xml");
  if (!m) return;
  Allocation a;
  a.cores.emplace();
  for (int c = 0; c < 64; ++c)
    if (c % 8 != 0) a.cores->push_back(c);
  const Plan p = make(*m, a);
  // The masks that the site's guide gives for rank i on GCD i, with their second threads.
  const char* masks[] = {"49-55,113-119", "57-63,121-127", "17-23,81-87",  "25-31,89-95",
                         "1-7,65-71",     "9-15,73-79",    "33-39,97-103", "41-47,105-111"};
  const int nodes[] = {3, 3, 1, 1, 0, 0, 2, 2};
  REQUIRE(p.ranks.size() == 8);
  for (size_t r = 0; r < 8; ++r) {
    CHECK(cpus(p, r) == masks[r]);
    CHECK(p.ranks[r].mem == nodes[r]);
  }
  // The other way round, GPUs follow the cores in order.
  Policy closest;
  closest.gpu = GpuMode::closest;
  CHECK(gpus(make(*m, a, closest)) == std::vector<int>{4, 5, 2, 3, 6, 7, 0, 1});
}

TEST_CASE("B13: numbers are in PCI order, and CUDA is told so (flux-framework/flux-core 1591)") {
  const Machine m = hgx_h100();
  CHECK(variable(environment(m, make(m), {}).common, "CUDA_DEVICE_ORDER") == "PCI_BUS_ID");
  EnvOptions o;
  for (int g = 0; g < 8; ++g) o.devices.push_back("GPU-" + std::to_string(g) + "-0");
  CHECK(variable(environment(m, make(m), o).common, "CUDA_DEVICE_ORDER").empty());
}

TEST_CASE("B15: the BMC's display adapter is no GPU, and card and renderD are one (ompi 14169)") {
  const auto m = machine_in("hwloc/prrte-turin-4gpu.xml");
  if (!m) return;
  const Plan p = make(*m);
  CHECK(p.ranks.size() == 4);
  CHECK(first_cpus(p) == "16 32 96 112 ");
  // Two of the four have a dead port beside them.
  CHECK(warns(p, "nic-down"));
}

TEST_CASE("B16: a MIG instance for each rank, where its GPU is (nanoporetech/dorado 1586, 812)") {
  Machine m = box({2, 1, 16, 2, 16});
  for (int i = 0; i < 4; ++i) {
    add_gpu(m, i / 2);
    Gpu& g = m.gpus.back();
    g.pci.bus = static_cast<uint8_t>(0x10 + i / 2);
    g.mig = "MIG-" + std::string(1, static_cast<char>('a' + i));
  }
  for (int n = 0; n < 2; ++n) {
    add_nic(m, n);
    for (int g = 2 * n; g < 2 * n + 2; ++g) link(m, g, n, Level::pix);
  }
  // Slurm counts instances in an order of its own: the UUIDs decide.
  const StepGpus step = find_gpus(m, {0, 1, 2, 3}, {"MIG-c", "MIG-d", "MIG-a", "MIG-b"});
  CHECK(step.gpus == range(0, 3));
  CHECK(step.words == std::vector<std::string>{"MIG-a", "MIG-b", "MIG-c", "MIG-d"});
  Allocation a;
  a.gpus = step.gpus;
  EnvOptions o;
  o.devices = step.words;
  Plan p = make(m, a);
  CHECK(p.gpu_order.empty());
  CHECK(nics(p) == std::vector<int>{0, 0, 1, 1});
  CHECK(p.ranks[2].mem == 1);
  const Environment env = environment(m, p, o);
  for (size_t r = 0; r < 4; ++r) {
    CHECK(variable(env.ranks[r], "CUDA_VISIBLE_DEVICES") == m.gpus[r].mig);
    CHECK(variable(env.ranks[r], "CUDA_DEVICE_ORDER").empty());
  }
  REQUIRE(warns(p, "mig-nccl"));  // advice: NCCL may refuse two ranks on one GPU
  CHECK(p.warnings.front().quiet);

  Policy ordered;
  ordered.visible = Visible::ordered;
  p = make(m, a, ordered);
  CHECK(p.gpu_order.empty());
  CHECK(warns(p, "visible-mig"));
  a.ranks = 2;
  CHECK(warns(make(m, a), "mig-several"));

  const StepGpus unknown = find_gpus(m, {0, 1}, {"MIG-a", "MIG-x"});
  CHECK(unknown.gpus.empty());
  REQUIRE(unknown.warnings.size() == 1);
  CHECK(unknown.warnings[0].code == "mig-unknown");
  // Whole GPUs by UUID; where the machine knows none, Slurm's numbers do.
  Machine whole = hgx_h100();
  CHECK(find_gpus(whole, {5, 2}, {"GPU-x", "GPU-y"}).gpus == std::vector<int>{2, 5});
  CHECK(find_gpus(whole, {5, 2}, {"GPU-x", "GPU-y"}).words ==
        std::vector<std::string>{"GPU-y", "GPU-x"});
  whole.gpus[7].uuid = "GPU-x";
  CHECK(find_gpus(whole, {5, 2}, {"GPU-x", "GPU-y"}).gpus == std::vector<int>{2, 7});
}

TEST_CASE("B17: only nodes with CPUs count on Grace (NVIDIA/mlperf-common 16)") {
  // GB200: no port is near a GPU by PCI, for GPUs hang on NVLink-C2C; four on each socket.
  Machine m = box({2, 1, 72, 1, 72});
  for (int g = 0; g < 4; ++g) add_gpu(m, g / 2);
  for (int n = 0; n < 8; ++n) add_nic(m, n / 4);
  for (int g = 0; g < 4; ++g)
    for (int n = 0; n < 8; ++n) link(m, g, n, Level::sys, g / 2 == n / 4 ? 0 : 1);
  const Plan p = make(m);
  for (size_t r = 0; r < 4; ++r) {
    CHECK(p.ranks[r].mem == static_cast<int>(r) / 2);
    CHECK(p.ranks[r].cpus.count() == 36);
    REQUIRE(p.ranks[r].nics.size() == 2);
    for (int n : p.ranks[r].nics) CHECK(n / 4 == static_cast<int>(r) / 2);
  }
  CHECK(p.warnings.empty());
}

TEST_CASE("C19: names are exact (NVIDIA-NeMo/nemo-platform 922)") {
  Machine m = box({1, 1, 16, 1, 16});
  for (int g = 0; g < 8; ++g) add_gpu(m, 0);
  for (int n = 0; n < 12; ++n) add_nic(m, 0);
  for (int n = 0; n < 12; ++n) link(m, n % 8, n, n < 10 ? Level::pix : Level::node);
  const std::string list = variable(environment(m, make(m), {}).common, "NCCL_IB_HCA");
  CHECK(list.starts_with("=mlx5_0:1,mlx5_1:1,"));
  CHECK(list.find("mlx5_10") == std::string::npos);
}

TEST_CASE("C21: one hardware, other names on each node (NVIDIA/nccl 1277)") {
  // Eight H100, four ports of 400 Gb/s that each serve two of them, and two slow ones.
  const auto node = [](const std::vector<int>& compute) {
    Machine m = box({2, 1, 32, 2, 32});
    for (int g = 0; g < 8; ++g) add_gpu(m, g / 4);
    for (int n = 0; n < 4; ++n) {
      add_nic(m, n / 2).name = "mlx5_" + std::to_string(compute[static_cast<size_t>(n)]);
      for (int g = 2 * n; g < 2 * n + 2; ++g) link(m, g, n, Level::pix);
    }
    add_nic(m, 0, LinkLayer::infiniband, 200).name = "mlx5_2";
    add_nic(m, 1, LinkLayer::ethernet, 25).name = "mlx5_6";
    return m;
  };
  const Machine a = node({0, 3, 5, 8}), b = node({0, 1, 4, 5});
  const Plan of_a = make(a), of_b = make(b);
  CHECK(variable(environment(a, of_a, {}).common, "NCCL_IB_HCA") ==
        "=mlx5_0:1,mlx5_3:1,mlx5_5:1,mlx5_8:1");
  CHECK(variable(environment(b, of_b, {}).common, "NCCL_IB_HCA") ==
        "=mlx5_0:1,mlx5_1:1,mlx5_4:1,mlx5_5:1");
  CHECK(of_a.nics[4].why == "200 Gb/s among 400 Gb/s");
  CHECK(of_a.nics[5].why == "ethernet among infiniband");
  // Wired alike, the two nodes do not differ.
  CHECK(digest(a, of_a).substr(32) == digest(b, of_b).substr(32));
}

TEST_CASE("C23: virtual functions and bonds (sgl-project/sglang 3685, vllm-project/vllm 14537)") {
  Machine m = box({2, 1, 48, 2, 48});
  for (int g = 0; g < 8; ++g) add_gpu(m, g / 4);
  for (int n = 0; n < 34; ++n) add_nic(m, n / 17, LinkLayer::ethernet, 0).virtual_function = true;
  for (int g = 0; g < 8; ++g) {
    Nic& bond = add_nic(m, g / 4, LinkLayer::ethernet, 400);
    bond.name = "mlx5_bond_" + std::to_string(g + 1);
    link(m, g, 34 + g, Level::pix);
    link(m, g, g, Level::pix);  // a virtual function stands where its port does
  }
  // The second port of the last card has a device too, which is a part of the bond.
  Nic& part = add_nic(m, 1, LinkLayer::ethernet, 200);
  part.pci = m.nics[41].pci;
  part.pci.function = 1;
  link(m, 7, 42, Level::pix);

  const Plan p = make(m);
  CHECK(nics(p) == range(34, 41));
  CHECK(p.used_nics() == range(34, 41));
  CHECK(p.nics[0].why == "a virtual function of a port that is there itself");
  CHECK(p.nics[42].why == "a part of mlx5_bond_8");

  SUBCASE("NVIDIA/nccl 224: 76 ports are more than NCCL takes; the near ones are kept") {
    Machine many = box({2, 1, 48, 2, 48});
    for (int g = 0; g < 8; ++g) add_gpu(many, g / 4);
    for (int n = 0; n < 76; ++n) add_nic(many, n / 38);
    for (int g = 0; g < 8; ++g) link(many, g, 40 + g, Level::pix);
    Policy all;
    all.nic = NicMode::all;
    const Plan cut = make(many, {}, all);
    const auto used = cut.used_nics();
    CHECK(used.size() == 32);
    for (int n = 40; n < 48; ++n) CHECK(cut.nics[static_cast<size_t>(n)].used);
    CHECK(cut.nics[75].why.starts_with("NCCL takes 32 ports"));
  }
  SUBCASE("a guest that was given virtual functions only uses them") {
    Machine guest = tied_pairs();
    for (Nic& n : guest.nics) n.virtual_function = true;
    CHECK(nics(make(guest)) == range(0, 7));
  }
}

TEST_CASE("C25: bonds change names between boots, ports do not move (NVIDIA/nccl 856)") {
  Machine before = tied_pairs();
  for (size_t n = 0; n < 8; ++n) before.nics[n].name = "mlx5_bond_" + std::to_string(n);
  Machine after = before;
  std::swap(after.nics[0].name, after.nics[1].name);
  const Plan a = make(before), b = make(after);
  CHECK(nics(a) == nics(b));
  CHECK(rails_of(a) == rails_of(b));
  CHECK(variable(environment(after, b, {}).ranks[0], "UCX_NET_DEVICES") == "mlx5_bond_1:1");
}

TEST_CASE("C27: two CPUs are too few for NCCL's threads (NVIDIA/nccl 601)") {
  Allocation a;
  a.cores = range(0, 7);
  const Plan p = make(hgx_h100(), a);
  REQUIRE(warns(p, "cores-one"));
  a.cores = range(0, 3);
  CHECK(warns(make(hgx_h100(), a), "cores-few"));
}

TEST_CASE("E31: a guest that hides where its devices are (NVIDIA/nccl 1674, 1464, 1843)") {
  // GPUs all on one node, ports on none, everything below host bridges.
  Machine m = box({2, 1, 32, 1, 32});
  for (int g = 0; g < 8; ++g) add_gpu(m, -1);
  for (int n = 0; n < 8; ++n) add_nic(m, -1);
  for (int g = 0; g < 8; ++g)
    for (int n = 0; n < 8; ++n) link(m, g, n, Level::phb);
  const Plan p = make(m);
  CHECK(warns(p, "locality-unknown"));
  CHECK(nics(p) == range(0, 7));
  CHECK(disjoint(p));
  for (size_t r = 0; r < 8; ++r) {
    CHECK(p.ranks[r].cpus.count() == 8);
    CHECK_FALSE(p.ranks[r].mem.has_value());
  }
}

TEST_CASE("E35: on two halves of 88 CPUs each rank is in its own (NVIDIA/nccl 1017)") {
  Machine m = box({2, 1, 88, 1, 88});
  for (int g = 0; g < 8; ++g) add_gpu(m, g / 4);
  const Plan p = make(m);
  for (size_t r = 0; r < 8; ++r) {
    CHECK(p.ranks[r].cpus.count() == 22);
    CHECK((p.ranks[r].cpus & ~m.numa[r / 4].cpus).none());
  }
}

TEST_CASE("E37: tools name distances otherwise, the order is the same (NVIDIA/nccl 1502, 246)") {
  Machine m = hgx_h100();
  const Plan pix = make(m);
  for (auto& row : m.near)
    for (Near& n : row)
      if (n.level == Level::pix) n.level = Level::phb;
  const Plan phb = make(m);
  CHECK(nics(phb) == nics(pix));
  CHECK(phb.used_nics() == pix.used_nics());
  CHECK(phb.ranks[0].gpu_nic == Level::phb);
}

TEST_CASE("E38: without memory nodes there is no memory policy (siderolabs/talos 9121)") {
  Machine m = box({1, 1, 112, 1, 56});
  for (int g = 0; g < 8; ++g) add_gpu(m, -1);
  const Plan p = make(m);
  CHECK(disjoint(p));
  for (const RankPlan& r : p.ranks) CHECK_FALSE(r.mem.has_value());
}

TEST_CASE("GKE A3 Ultra: two ports as near to two GPUs are shared out one to one") {
  const Plan p = make(tied_pairs());
  CHECK(nics(p) == range(0, 7));
}

TEST_CASE("DGX H100: storage ports in the GPUs' memory nodes stay out") {
  Machine m = box({2, 1, 56, 2, 56});
  for (int g = 0; g < 8; ++g) add_gpu(m, g / 4);
  for (int n = 0; n < 12; ++n) add_nic(m, n / 6);
  const int port[] = {0, 3, 4, 5, 6, 9, 10, 11};
  for (int g = 0; g < 8; ++g) link(m, g, port[g], Level::pxb, 4);
  const Plan p = make(m);
  CHECK(nics(p) == std::vector<int>(std::begin(port), std::end(port)));
  CHECK(p.used_nics() == nics(p));
  CHECK(p.nics[1].why == "farther from every GPU than others: NODE, they are PXB");
  // Nor do they stand in for a dead one.
  m.nics[0].active = false;
  const Plan dead = make(m);
  CHECK(warns(dead, "nic-down"));
  CHECK_FALSE(dead.nics[1].used);
  CHECK(m.near[0][static_cast<size_t>(nics(dead)[0])].level == Level::node);
}

TEST_CASE("H20: four ports for eight GPUs, and one more that is for storage") {
  Machine m = box({2, 1, 48, 2, 48});
  for (int g = 0; g < 8; ++g) add_gpu(m, g / 4);
  for (int n = 0; n < 4; ++n) add_nic(m, n / 2);
  add_nic(m, 0);
  for (int n = 0; n < 4; ++n) link(m, 2 * n, n, Level::pix);
  const Plan p = make(m);
  CHECK(nics(p) == std::vector<int>{0, 0, 1, 1, 2, 2, 3, 3});
  CHECK_FALSE(p.nics[4].used);
}

TEST_CASE("InfiniBand and Ethernet ports are told apart, whatever their names") {
  Machine m = box({2, 1, 56, 2, 56});
  for (int g = 0; g < 8; ++g) add_gpu(m, g / 4);
  for (int n = 0; n < 8; ++n) add_nic(m, n / 4).name = "mlx5_ib" + std::to_string(n);
  for (int n = 0; n < 5; ++n)
    add_nic(m, 1, LinkLayer::ethernet, 25).name = "mlx5_eth" + std::to_string(n);
  for (int g = 0; g < 8; ++g) {
    link(m, g, g, Level::pix);
    link(m, g, g ^ 1, Level::pxb, 4);
  }
  const Plan p = make(m);
  CHECK(nics(p) == range(0, 7));
  CHECK(p.used_nics() == range(0, 7));
}

TEST_CASE("a port that lost half its rate is used and told of; one that cannot be opened is not") {
  Machine m = hgx_h100();
  m.nics[2].rate_gbps = 200;
  Plan p = make(m);
  CHECK(nics(p)[2] == 2);
  REQUIRE(warns(p, "nic-slow"));
  CHECK(p.warnings.front().message.find("mlx5_2:1 beside GPU 2") != std::string::npos);
  m = hgx_h100();
  m.nics[2].opens = false;
  p = make(m);
  CHECK(nics(p)[2] != 2);
  CHECK(warns(p, "nic-closed"));
  CHECK(p.nics[2].why.find("cannot be opened") != std::string::npos);
}

TEST_CASE("blocks of GPUs lie in one memory node although PCI order crosses them") {
  Machine m = box({2, 1, 8, 1, 8});
  for (int g = 0; g < 4; ++g) add_gpu(m, g % 2);
  Allocation a;
  a.ranks = 2;
  const Plan p = make(m, a);
  CHECK(p.ranks[0].gpus == std::vector<int>{0, 2});
  CHECK(p.ranks[1].gpus == std::vector<int>{1, 3});
  CHECK_FALSE(p.ranks[0].spans);
  CHECK(cpus(p, 1) == "8-15");
}

TEST_CASE("ranks without GPUs use the ports where they run") {
  Machine m = box({2, 1, 8, 1, 8});
  for (int n = 0; n < 4; ++n) add_nic(m, n / 2);
  Allocation a;
  a.ranks = 4;
  const Plan p = make(m, a);
  CHECK(nics(p) == range(0, 3));
  CHECK_FALSE(p.ranks[0].gpu_nic.has_value());
  CHECK(variable(environment(m, p, {}).ranks[3], "UCX_NET_DEVICES") == "mlx5_3:1");
}

TEST_CASE("cores beside no GPU are named, for they stay idle") {
  const Plan p = make(dgx_a100());
  CHECK(std::any_of(p.why.begin(), p.why.end(), [](const std::string& w) {
    return w.starts_with("CPUs 0-15,32-47,64-79,96-111,128-143,") &&
           w.find("idle") != std::string::npos;
  }));
}
