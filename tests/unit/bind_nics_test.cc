// Which network ports are used, and whose each is.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "plans.h"

using namespace trainlaunch;

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
