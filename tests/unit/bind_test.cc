#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "bind/bind.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "plans.h"

using namespace trainlaunch;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

const bool isolated = (isolate_hwloc(), true);

std::string word_of(const json& j) { return j.is_string() ? j.get<std::string>() : ""; }

}  // namespace

TEST_CASE("HGX H100: port numbers are not GPU numbers, storage ports stay out") {
  const Plan p = make(hgx_h100());
  REQUIRE(p.ranks.size() == 8);
  CHECK(gpus(p) == range(0, 7));
  CHECK(nics(p) == std::vector<int>{0, 1, 2, 5, 6, 7, 8, 9});
  CHECK(p.used_nics() == std::vector<int>{0, 1, 2, 5, 6, 7, 8, 9});
  CHECK(p.ranks[3].gpu_nic == Level::pix);
  // 14 cores each, threads together.
  CHECK(cpus(p, 0) == "0-13,112-125");
  CHECK(cpus(p, 3) == "42-55,154-167");
  CHECK(cpus(p, 4) == "56-69,168-181");
  CHECK(p.ranks[0].mem == 0);
  CHECK(p.ranks[7].mem == 1);
  CHECK(p.warnings.empty());
}

TEST_CASE("A100 of NVIDIA/nccl issue 820: pairs below a switch are matched one to one") {
  Machine m = box({2, 1, 32, 2, 8});
  for (int g = 0; g < 8; ++g) add_gpu(m, g / 4);
  for (int n = 0; n < 10; ++n) add_nic(m, n < 5 ? 0 : 1, LinkLayer::infiniband, 200);
  const int first[] = {0, 2, 6, 8};
  for (int g = 0; g < 8; ++g)
    for (int n : {first[g / 2], first[g / 2] + 1}) link(m, g, n, Level::pxb, 4);
  const Plan p = make(m);
  CHECK(nics(p) == std::vector<int>{0, 1, 2, 3, 6, 7, 8, 9});
  CHECK(p.used_nics() == std::vector<int>{0, 1, 2, 3, 6, 7, 8, 9});
}

TEST_CASE("DGX-1: two GPUs share a port where there are half as many") {
  Machine m = box({2, 1, 20, 2, 20});
  for (int g = 0; g < 8; ++g) add_gpu(m, g / 4);
  for (int n = 0; n < 4; ++n) add_nic(m, n / 2, LinkLayer::infiniband, 100);
  for (int g = 0; g < 8; ++g) link(m, g, g / 2, Level::pix);
  const Plan p = make(m);
  CHECK(nics(p) == std::vector<int>{0, 0, 1, 1, 2, 2, 3, 3});
  CHECK(cpus(p, 0) == "0-4,40-44");
}

TEST_CASE("DGX A100: GPU order is not memory node order") {
  const Plan p = make(dgx_a100());
  CHECK(cpus(p, 0) == "48-55,176-183");
  CHECK(cpus(p, 1) == "56-63,184-191");
  CHECK(cpus(p, 2) == "16-23,144-151");
  CHECK(cpus(p, 7) == "88-95,216-223");
  const int node[] = {3, 3, 1, 1, 7, 7, 5, 5};
  for (size_t r = 0; r < 8; ++r) CHECK(p.ranks[r].mem == node[r]);
  CHECK(nics(p) == range(0, 7));
  CHECK(disjoint(p));
}

TEST_CASE("more ports than GPUs: each GPU gets an equal number, the rest idles") {
  Machine m = box({1, 1, 16, 1, 16});
  add_gpu(m, 0);
  add_gpu(m, 0);
  for (int n = 0; n < 5; ++n) add_nic(m, 0);
  for (int g = 0; g < 2; ++g)
    for (int n = 0; n < 5; ++n) link(m, g, n, Level::pxb, 4);
  const Plan p = make(m);
  CHECK(p.ranks[0].nics.size() == 2);
  CHECK(p.ranks[1].nics.size() == 2);
}

TEST_CASE("where NCCL takes no more ports, each GPU keeps as many of its own") {
  Machine m = box({2, 1, 16, 1, 16});
  for (int g = 0; g < 8; ++g) add_gpu(m, g / 4);
  for (int n = 0; n < 40; ++n) add_nic(m, n / 20);
  for (int n = 0; n < 40; ++n) link(m, n / 5, n, Level::pix);
  const Plan p = make(m);
  for (int r = 0; r < 8; ++r) {
    CAPTURE(r);
    CHECK(p.ranks[static_cast<size_t>(r)].nics == range(5 * r, 5 * r + 3));
  }
}

TEST_CASE("a GPU gives way when another has no other port") {
  // GPU 0 is as near to ports 0 and 1, GPU 1 only to port 0.
  Machine m = box({1, 1, 4, 1, 4});
  add_gpu(m, 0);
  add_gpu(m, 0);
  add_nic(m, 0);
  add_nic(m, 0);
  link(m, 0, 0, Level::pix);
  link(m, 0, 1, Level::pix);
  link(m, 1, 0, Level::pix);
  CHECK(nics(make(m)) == std::vector<int>{1, 0});
}

TEST_CASE("ports that are down, slow or of another network are left out, and why is said") {
  Machine m = box({2, 1, 8, 1, 8});
  for (int g = 0; g < 2; ++g) add_gpu(m, g);
  add_nic(m, 0).active = false;               // beside GPU 0, dead
  add_nic(m, 1);                              // beside GPU 1
  add_nic(m, 0, LinkLayer::ethernet, 25);     // management
  add_nic(m, 1, LinkLayer::infiniband, 100);  // storage
  link(m, 0, 0, Level::pix);
  link(m, 1, 1, Level::pix);
  const Plan p = make(m);
  CHECK(p.used_nics() == std::vector<int>{1});
  CHECK(nics(p) == std::vector<int>{1, 1});
  CHECK(p.ranks[0].gpu_nic == Level::sys);
  CHECK(p.nics[0].why == "its port is down");
  CHECK(p.nics[2].why == "ethernet among infiniband");
  CHECK(p.nics[3].why == "100 Gb/s among 400 Gb/s");
  CHECK(warns(p, "nic-down"));

  SUBCASE("all takes every port that is up, off takes none, a list takes what it names") {
    Policy policy;
    policy.nic = NicMode::all;
    CHECK(make(m, {}, policy).used_nics() == std::vector<int>{1, 2, 3});
    policy.nic = NicMode::off;
    CHECK(make(m, {}, policy).used_nics().empty());
    policy.nic = NicMode::list;
    policy.nics = {"mlx5_3", "mlx5_2:1"};
    CHECK(make(m, {}, policy).used_nics() == std::vector<int>{2, 3});
    policy.nics = {"mlx5_9"};
    CHECK_FALSE(plan(m, {}, policy).has_value());
  }
}

TEST_CASE(
    "a dead port on the GPU's socket is told where the rank has to cross to another like it") {
  Machine m = box({2, 1, 8, 1, 8});
  for (int g = 0; g < 2; ++g) add_gpu(m, g);
  for (int n = 0; n < 2; ++n) add_nic(m, n);
  m.nics[0].active = false;
  CHECK(make(m).ranks[0].gpu_nic == Level::sys);
  CHECK(warns(make(m), "nic-down"));
  // An idle port of another card is none of its business.
  m.nics[0].device = 0x1015;
  CHECK_FALSE(warns(make(m), "nic-down"));
}

TEST_CASE("RoCE beside the GPUs wins over InfiniBand far away") {
  Machine m = box({2, 1, 8, 1, 8});
  for (int g = 0; g < 2; ++g) add_gpu(m, g);
  for (int n = 0; n < 2; ++n) add_nic(m, n, LinkLayer::ethernet);
  add_nic(m, 0);
  for (int g = 0; g < 2; ++g) link(m, g, g, Level::pix);
  CHECK(make(m).used_nics() == std::vector<int>{0, 1});
}

TEST_CASE("a storage port that is faster than those beside the GPUs is still for storage") {
  // RoCE of 100 Gb/s beside each GPU, a BlueField of 400 Gb/s beside none.
  Machine m = box({2, 1, 8, 1, 8});
  for (int g = 0; g < 4; ++g) add_gpu(m, g / 2);
  for (int n = 0; n < 4; ++n) add_nic(m, n / 2, LinkLayer::ethernet, 100);
  add_nic(m, 0, LinkLayer::ethernet, 400);
  for (int g = 0; g < 4; ++g) link(m, g, g, Level::pix);
  CHECK(make(m).used_nics() == range(0, 3));
  // Nor does it slow down a step whose GPU's own port is dead.
  m.nics[0].active = false;
  Allocation one;
  one.gpus = std::vector<int>{0};
  CHECK(make(m, one).used_nics() == std::vector<int>{1});
}

TEST_CASE("a port that is below no switch is left out, with advice where a GPU could use it") {
  // Two GPUs below a switch with a port, two beside another port, all of one socket.
  Machine m = box({1, 1, 8, 1, 8});
  for (int g = 0; g < 4; ++g) add_gpu(m, 0);
  for (int n = 0; n < 2; ++n) add_nic(m, 0);
  for (int g = 0; g < 2; ++g) link(m, g, 0, Level::pix);
  const Plan p = make(m);
  CHECK(p.used_nics() == std::vector<int>{0});
  CHECK(p.nics[1].why == "below no GPU's switch, as others are: taken for storage or management");
  CHECK(warns(p, "nic-spare"));
  Policy site;
  site.nic_include = {"mlx5_*"};
  const Plan included = make(m, {}, site);
  CHECK(nics(included) == std::vector<int>{0, 0, 1, 1});
  CHECK_FALSE(warns(included, "nic-spare"));
  // Where each GPU has a nearer one there is nothing to say.
  for (int g = 2; g < 4; ++g) link(m, g, 0, Level::pxb);
  CHECK_FALSE(warns(make(m), "nic-spare"));
}

TEST_CASE("closest keeps the ports that GPUs were paired with") {
  Machine m = box({1, 1, 8, 1, 8});
  add_gpu(m, 0);
  add_nic(m, 0);
  add_nic(m, 0);
  link(m, 0, 0, Level::pix, 2);
  link(m, 0, 1, Level::pxb, 4);
  CHECK(make(m).used_nics() == std::vector<int>{0, 1});
  Policy policy;
  policy.nic = NicMode::closest;
  CHECK(make(m, {}, policy).used_nics() == std::vector<int>{0});
}

TEST_CASE("the site's include and exclude lists are names or patterns; a list of the user's wins") {
  const Machine m = hgx_h100();
  const std::vector<int> gpus{0, 1, 2, 3, 4, 5, 6, 7};
  const auto used = [&](const Policy& p) {
    std::string names;
    const auto choice = choose_nics(m, gpus, p);
    REQUIRE(choice.has_value());
    for (size_t n = 0; n < m.nics.size(); ++n)
      if ((*choice)[n].used) names += m.nics[n].name + ' ';
    return names;
  };
  Policy p;
  p.nic_exclude = {"mlx5_1", "mlx5_[78]:1"};
  CHECK(used(p) == "mlx5_0 mlx5_2 mlx5_5 mlx5_6 mlx5_9 ");
  CHECK((*choose_nics(m, gpus, p))[8].why == "the site excludes mlx5_[78]:1");
  p.nic_include = {"mlx5_?"};
  CHECK(used(p) == "mlx5_0 mlx5_2 mlx5_5 mlx5_6 mlx5_9 ");
  p.nic_include = {"mlx5_0", "mlx5_1", "mlx5_3"};
  CHECK(used(p) == "mlx5_0 mlx5_3 ");
  // Every usable port is still none that the site keeps for itself.
  p.nic = NicMode::all;
  CHECK(used(p) == "mlx5_0 mlx5_3 ");
  p.nic = NicMode::list;
  p.nics = {"mlx5_1"};
  CHECK(used(p) == "mlx5_1 ");
}

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

TEST_CASE("a part of the GPUs: the step's own, in PCI order") {
  Allocation a;
  a.gpus = {2, 5};
  const Plan p = make(hgx_h100(), a);
  REQUIRE(p.ranks.size() == 2);
  CHECK(gpus(p) == std::vector<int>{2, 5});
  CHECK(p.gpu_order == std::vector<int>{2, 5});
  CHECK(nics(p) == std::vector<int>{2, 7});
  CHECK(p.used_nics() == std::vector<int>{2, 7});
  CHECK(p.ranks[1].mem == 1);
}

TEST_CASE("several GPUs per rank are dealt in blocks") {
  Allocation a;
  a.ranks = 4;
  const Plan p = make(dgx_a100(), a);
  CHECK(p.ranks[0].gpus == std::vector<int>{0, 1});
  CHECK(p.ranks[3].gpus == std::vector<int>{6, 7});
  CHECK(p.ranks[0].nics == std::vector<int>{0, 1});
  CHECK_FALSE(p.ranks[0].spans);
  CHECK(cpus(p, 0) == "48-63,176-191");
  CHECK(p.ranks[3].mem == 5);
  CHECK(p.gpu_order.empty());  // each sees its own
}

TEST_CASE("a rank with GPUs on several memory nodes is not narrowed") {
  Allocation a;
  a.ranks = 1;
  const Plan p = make(hgx_h100(), a);
  CHECK(p.ranks[0].gpus == range(0, 7));
  CHECK(p.ranks[0].spans);
  CHECK(p.ranks[0].keep_cpus);
  CHECK_FALSE(p.ranks[0].mem.has_value());
}

TEST_CASE("several ranks per GPU, with a warning") {
  Allocation a;
  a.ranks = 16;
  const Plan p = make(hgx_h100(), a);
  CHECK(gpus(p) == std::vector<int>{0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7});
  CHECK(warns(p, "gpus-shared"));
  CHECK(disjoint(p));
  CHECK(cpus(p, 1) == "7-13,119-125");
  CHECK(p.gpu_order.empty());
}

TEST_CASE("fewer ranks than GPUs: taken so that ports differ") {
  // Eight GPUs, four ports, each near a pair of GPUs.
  Machine m = box({2, 1, 16, 1, 16});
  for (int g = 0; g < 8; ++g) add_gpu(m, g / 4);
  for (int n = 0; n < 4; ++n) add_nic(m, n / 2);
  for (int g = 0; g < 8; ++g) link(m, g, g / 2, Level::pix);
  Allocation a;
  a.ranks = 5;
  const Plan p = make(m, a);
  const auto mine = gpus(p);
  CHECK(std::is_sorted(mine.begin(), mine.end()));
  std::set<int> used;
  for (int n : nics(p)) used.insert(n);
  CHECK(used.size() == 4);
  CHECK(warns(p, "gpus-idle"));
  // Each rank's own GPU stands at its place.
  REQUIRE(p.gpu_order.size() == 8);
  for (size_t r = 0; r < 5; ++r) CHECK(p.gpu_order[r] == mine[r]);
}

TEST_CASE("which GPUs a rank sees can be chosen") {
  Policy policy;
  policy.visible = Visible::own;
  CHECK(make(hgx_h100(), {}, policy).gpu_order.empty());
  policy.visible = Visible::ordered;
  Allocation a;
  a.ranks = 4;
  CHECK(make(hgx_h100(), a, policy).gpu_order == range(0, 7));
}

TEST_CASE("a map says which GPU each rank gets, over and over") {
  Policy policy;
  policy.gpu = GpuMode::map;
  policy.map = {7, 6, 5, 4, 3, 2, 1, 0};
  Plan p = make(hgx_h100(), {}, policy);
  CHECK(gpus(p) == std::vector<int>{7, 6, 5, 4, 3, 2, 1, 0});
  CHECK(p.gpu_order == gpus(p));
  CHECK(nics(p) == std::vector<int>{9, 8, 7, 6, 5, 2, 1, 0});
  CHECK(p.ranks[0].mem == 1);
  CHECK(cpus(p, 7) == "42-55,154-167");  // the fourth of the ranks on that socket
  CHECK(p.warnings.empty());

  Allocation a;
  a.ranks = 5;
  a.gpus = {2, 5};
  policy.map = {1, 0, 0};
  p = make(hgx_h100(), a, policy);
  CHECK(gpus(p) == std::vector<int>{5, 2, 2, 5, 2});  // numbers of the step, not of the machine
  CHECK(p.gpu_order.empty());
  REQUIRE(warns(p, "gpus-shared"));
  CHECK(p.warnings.front().quiet);  // it was asked for

  policy.map = {0, 2};
  const auto bad = plan(hgx_h100(), a, policy);
  REQUIRE_FALSE(bad.has_value());
  CHECK(bad.error().what ==
        "policy map names GPU 2, but the step has GPUs 0-1; its GPUs count from 0");
  policy.map = {0, -1};
  CHECK_FALSE(plan(hgx_h100(), a, policy).has_value());
  policy.map.clear();
  CHECK_FALSE(plan(hgx_h100(), a, policy).has_value());
}

TEST_CASE("closest: GPUs go to the ranks' parts of the step's cores") {
  Policy policy;
  policy.gpu = GpuMode::closest;
  Plan p = make(dgx_a100(), {}, policy);
  // Rank i has the cores of node i; every other node has two GPUs, of which one goes next door.
  CHECK(cpus(p, 0) == "0-15,128-143");
  for (size_t r : {1, 3, 5, 7})
    CHECK(dgx_a100().gpus[static_cast<size_t>(gpus(p)[r])].place.numa == static_cast<int>(r));
  for (size_t r = 0; r < 8; ++r) CHECK((gpus(p)[r] < 4) == (r < 4));
  CHECK(p.ranks[1].mem == 1);
  CHECK_FALSE(p.ranks[0].mem.has_value());
  CHECK(disjoint(p));
  CHECK(p.gpu_order == gpus(p));

  SUBCASE("Polaris is reversed: rank i is beside GPU 3 - i") {
    Machine m = box({1, 4, 8, 2, 8});
    for (int g = 0; g < 4; ++g) add_gpu(m, 3 - g);
    p = make(m, {}, policy);
    CHECK(gpus(p) == std::vector<int>{3, 2, 1, 0});
    CHECK(cpus(p, 0) == "0-7,32-39");
    CHECK(p.ranks[0].mem == 0);
    CHECK(p.warnings.empty());
  }
  SUBCASE("ranks alike take their GPUs in order") {
    p = make(hgx_h100(), {}, policy);
    CHECK(gpus(p) == range(0, 7));
    CHECK(cpus(p, 3) == "42-55,154-167");
  }
  SUBCASE("every GPU once before any twice, although some are far") {
    Machine m = box({2, 1, 8, 1, 8});
    for (int g = 0; g < 4; ++g) add_gpu(m, g / 2);
    Allocation a;
    a.cores = range(0, 7);  // one socket
    a.ranks = 4;
    p = make(m, a, policy);
    auto all = gpus(p);
    std::sort(all.begin(), all.end());
    CHECK(all == range(0, 3));
    CHECK(warns(p, "cores-far"));
    a.ranks = 6;
    std::map<int, int> users;
    for (int g : gpus(make(m, a, policy))) ++users[g];
    CHECK(users == std::map<int, int>{{0, 2}, {1, 2}, {2, 1}, {3, 1}});
  }
  SUBCASE("several GPUs for each rank") {
    Allocation a;
    a.ranks = 2;
    Machine m = box({2, 1, 8, 1, 8});
    for (int g = 0; g < 4; ++g) add_gpu(m, 1 - g / 2);
    p = make(m, a, policy);
    CHECK(p.ranks[0].gpus == std::vector<int>{2, 3});
    CHECK(p.ranks[1].gpus == std::vector<int>{0, 1});
    CHECK(cpus(p, 0) == "0-7");
  }
  SUBCASE("fewer ranks than GPUs: near ones whose ports differ") {
    Machine m = box({2, 1, 8, 1, 8});
    for (int g = 0; g < 8; ++g) add_gpu(m, g / 4);
    for (int n = 0; n < 4; ++n) add_nic(m, n / 2);
    for (int g = 0; g < 8; ++g) link(m, g, g / 2, Level::pix);
    Allocation a;
    a.ranks = 5;
    a.cores = {0, 1, 8, 9, 10};
    p = make(m, a, policy);
    CHECK(p.ranks[0].gpus.front() < 4);
    CHECK(p.ranks[1].gpus.front() < 4);
    CHECK(nics(p)[0] != nics(p)[1]);
    for (size_t r = 2; r < 5; ++r) CHECK(p.ranks[r].gpus.front() >= 4);
  }
  SUBCASE("where Slurm places ranks, their cores are a guess, and this is said") {
    Allocation a;
    a.asked.cpu = true;
    p = make(dgx_a100(), a, policy);
    CHECK(warns(p, "closest-assumed"));
    CHECK(p.ranks[0].keep_cpus);
    a.asked = {};
    a.cores = {9999};
    p = make(dgx_a100(), a, policy);
    CHECK(warns(p, "closest-unknown"));
    CHECK(gpus(p) == range(0, 7));
  }
  SUBCASE("cpu=numa widens to the nodes of the rank's cores") {
    policy.cpu = CpuMode::numa;
    p = make(hgx_h100(), {}, policy);
    CHECK(cpus(p, 1) == "0-55,112-167");
    CHECK(cpus(p, 7) == "56-111,168-223");
  }
}

TEST_CASE("ranks without GPUs get neighbouring cores and the memory beside them") {
  Machine m = box({2, 2, 4, 2, 4});
  Allocation a;
  a.ranks = 4;
  const Plan p = make(m, a);
  CHECK(cpus(p, 0) == "0-3,16-19");
  CHECK(cpus(p, 3) == "12-15,28-31");
  CHECK(p.ranks[3].mem == 3);
  CHECK(p.ranks[3].gpus.empty());
  CHECK_FALSE(p.binds_gpus);
  // One rank alone keeps what it has.
  const Plan one = make(m);
  REQUIRE(one.ranks.size() == 1);
  CHECK(one.ranks[0].keep_cpus);
}

TEST_CASE("a machine that hides where its GPUs are: cores by rank, no memory, a warning") {
  Machine m = box({2, 1, 8, 1, 8});
  for (int g = 0; g < 4; ++g) add_gpu(m, -1);
  for (int n = 0; n < 4; ++n) add_nic(m, -1);
  const Plan p = make(m);
  CHECK(disjoint(p));
  CHECK(cpus(p, 0) == "0-3");
  CHECK(cpus(p, 3) == "12-15");
  for (const RankPlan& r : p.ranks) CHECK_FALSE(r.mem.has_value());
  CHECK(nics(p) == range(0, 3));
  CHECK(warns(p, "locality-unknown"));
}

TEST_CASE("what was asked of Slurm is left alone") {
  Allocation a;
  a.asked.cpu = true;
  Plan p = make(hgx_h100(), a);
  CHECK(p.ranks[0].keep_cpus);
  CHECK(p.ranks[0].mem == 0);
  a.asked = {.mem = true};
  p = make(hgx_h100(), a);
  CHECK_FALSE(p.ranks[0].keep_cpus);
  CHECK_FALSE(p.ranks[0].mem.has_value());
  a.asked = {.gpu = true};
  p = make(hgx_h100(), a);
  CHECK_FALSE(p.binds_gpus);
  CHECK(p.ranks[0].gpus.empty());
  CHECK(p.ranks[0].keep_cpus);
  CHECK_FALSE(p.used_nics().empty());
  CHECK(warns(p, "gpu-bind-asked"));
  Policy off;
  off.gpu = GpuMode::off;
  p = make(hgx_h100(), {}, off);
  CHECK(p.ranks[0].keep_cpus);
  CHECK(p.ranks[0].gpus.empty());
  CHECK(p.used_nics().empty());
}

TEST_CASE("an allocation that is not of this machine") {
  Allocation a;
  a.gpus = {3, 9};
  const auto bad = plan(hgx_h100(), a, {});
  REQUIRE_FALSE(bad.has_value());
  CHECK(bad.error().exit == exit_code::failed);
  CHECK(bad.error().what.find("GPU 9") != std::string::npos);

  a = {};
  a.cores = {0, 500};
  const Plan p = make(hgx_h100(), a);
  CHECK(warns(p, "cores-unknown"));
  for (const RankPlan& r : p.ranks) {
    CHECK(r.keep_cpus);
    CHECK_FALSE(r.mem.has_value());
  }
  CHECK(gpus(p) == range(0, 7));

  // Whoever wants neither CPUs nor memory misses nothing; strict would stop the step for nothing.
  Policy none;
  none.cpu = CpuMode::off;
  CHECK(warns(make(hgx_h100(), a, none), "cores-unknown"));
  none.mem = MemMode::off;
  CHECK_FALSE(warns(make(hgx_h100(), a, none), "cores-unknown"));
  a.asked = {true, true, false};
  CHECK_FALSE(warns(make(hgx_h100(), a), "cores-unknown"));

  a = {};
  a.ranks = max_local_ranks + 1;
  CHECK_FALSE(plan(hgx_h100(), a, {}).has_value());
}

TEST_CASE("equal plans have equal digests, others do not") {
  const auto whole = [](const std::string& d) { return d.substr(0, 32); };
  const auto rails = [](const std::string& d) { return d.substr(32, 16); };
  const auto ports = [](const std::string& d) { return d.substr(48); };
  const Machine m = hgx_h100();
  const std::string d = digest(m, make(m));
  REQUIRE(d.size() == 64);
  CHECK(d == digest(hgx_h100(), make(hgx_h100())));
  CHECK(ports_of(m, make(m)) == "8 x infiniband 400 Gb/s");

  SUBCASE("other CPUs: another plan on the same rails") {
    Policy policy;
    policy.one_thread = true;
    const std::string other = digest(m, make(m, {}, policy));
    CHECK(whole(other) != whole(d));
    CHECK(rails(other) == rails(d));
    CHECK(ports(other) == ports(d));
  }
  SUBCASE("a dead port: other rails, another set of ports") {
    Machine down = m;
    down.nics[0].active = false;
    const std::string other = digest(down, make(down));
    CHECK(rails(other) != rails(d));
    CHECK(ports(other) != ports(d));
  }
  SUBCASE("NVIDIA/nccl issue 1277: other names for the same ports are no difference") {
    Machine renamed = m;
    for (size_t n = 0; n < m.nics.size(); ++n) renamed.nics[n].name = "rocep" + std::to_string(n);
    const std::string other = digest(renamed, make(renamed));
    CHECK(whole(other) != whole(d));
    CHECK(rails(other) == rails(d));
    CHECK(ports(other) == ports(d));
  }
  SUBCASE("NVIDIA/nccl issue 820: GPUs that see the ports of a pair the other way round") {
    Machine crossed = m;
    for (int g = 0; g < 2; ++g) {
      link(crossed, g, g, Level::node);
      link(crossed, g, 1 - g, Level::pix);
    }
    const std::string other = digest(crossed, make(crossed));
    CHECK(rails(other) != rails(d));
    CHECK(ports(other) == ports(d));
    CHECK(rails_of(make(crossed)).starts_with("rank 0: rail 1; rank 1: rail 0; rank 2: rail 2"));
  }
}

TEST_CASE("real machines: every GPU's rank has its CPUs, its node and its nearest usable port") {
  const char* shared = std::getenv("TL_SHARED");
  const fs::path dir = fs::path(shared && *shared ? shared : TL_SRCDIR "/../shared") / "topologies";
  if (!fs::is_directory(dir)) {
    MESSAGE("skipped: no topology files; TL_SHARED names the folder that has them");
    return;
  }
  for (const auto& entry : fs::directory_iterator(dir / "answers")) {
    const std::string name = entry.path().stem();
    CAPTURE(name);
    fs::path file = dir / "hwloc" / (name + ".xml");
    if (!fs::exists(file)) file = dir / "nccl-as-hwloc" / (name + ".xml");
    if (!fs::exists(file)) continue;
    std::ifstream in(entry.path());
    const json want = json::parse(in)["gpus"];
    if (want.empty()) continue;
    const auto m = load_file(file);
    REQUIRE(m.has_value());
    const Plan p = make(*m);
    REQUIRE(p.ranks.size() == want.size());

    std::map<int, int> users;
    for (const RankPlan& r : p.ranks)
      for (int n : r.nics) ++users[n];
    for (size_t i = 0; i < want.size(); ++i) {
      CAPTURE(i);
      const RankPlan& r = p.ranks[i];
      const CpuSet beside = *parse_cpus(word_of(want[i]["cpus"]));
      // A share of what is beside the GPU; where there is too little for all, others may double up.
      CHECK(r.cpus.any());
      CHECK((r.cpus & ~beside).none());
      if (m->numa.size() > 1) {
        REQUIRE(r.mem.has_value());
        CHECK(std::to_string(*r.mem) == word_of(want[i]["numa"]));
      }
      std::set<std::string> nearest;
      for (const json& n : want[i]["nearest_active_nics"]) {
        std::istringstream names(word_of(n));
        for (std::string part; std::getline(names, part, '/');) nearest.insert(part);
      }
      CHECK(r.nics.empty() == nearest.empty());
      for (int n : r.nics) {
        const Nic& nic = m->nics[static_cast<size_t>(n)];
        CHECK_MESSAGE(nearest.contains(nic.name), nic.name);
        // Nobody shares while an equally near port idles.
        const auto& row = m->near[i];
        for (size_t other = 0; other < row.size(); ++other)
          if (p.nics[other].used && row[other] == row[static_cast<size_t>(n)] && users[n] > 1)
            CHECK(users[static_cast<int>(other)] > 0);
      }
    }
  }
}
