// Which GPUs each rank gets, and which it sees.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "plans.h"

using namespace trainlaunch;

namespace {

// Eight GPUs and four ports, each near a pair of GPUs.
Machine a_port_for_two(const Shape& shape) {
  Machine m = box(shape);
  for (int g = 0; g < 8; ++g) add_gpu(m, g / 4);
  for (int n = 0; n < 4; ++n) add_nic(m, n / 2);
  for (int g = 0; g < 8; ++g) link(m, g, g / 2, Level::pix);
  return m;
}

}  // namespace

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
  const Machine m = a_port_for_two({2, 1, 16, 1, 16});
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
    const Machine m = a_port_for_two({2, 1, 8, 1, 8});
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
