#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "env/env.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <map>

#include "env/hosts.h"
#include "machines.h"

using namespace trainlaunch;

namespace {

struct Made {
  Machine machine;
  Plan plan;
  Environment env;
};

Made make(Machine m, const Allocation& a = {}, const Policy& p = {}, const EnvOptions& o = {}) {
  auto made = plan(m, a, p);
  REQUIRE(made.has_value());
  Environment env = environment(m, *made, o);
  return {std::move(m), std::move(*made), std::move(env)};
}

// What a rank gets; a name is never given twice.
std::map<std::string, Variable> of_rank(const Made& made, size_t rank) {
  std::map<std::string, Variable> out;
  for (const auto* list : {&made.env.common, &made.env.ranks[rank]})
    for (const Variable& v : *list) CHECK(out.emplace(v.name, v).second);
  return out;
}

std::string value(const Made& made, size_t rank, const std::string& name) {
  const auto vars = of_rank(made, rank);
  const auto at = vars.find(name);
  return at == vars.end() ? "(unset)" : at->second.value;
}

std::vector<std::string> hosts(std::string_view list, size_t limit = 100) {
  auto r = expand_hosts(list, limit);
  REQUIRE(r.has_value());
  return *r;
}

}  // namespace

TEST_CASE("NCCL gets one exact list for the node, UCX each rank's own port") {
  const Made made = make(hgx_h100());
  for (size_t r = 0; r < 8; ++r)
    CHECK(value(made, r, "NCCL_IB_HCA") ==
          "=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_5:1,mlx5_6:1,mlx5_7:1,mlx5_8:1,mlx5_9:1");
  CHECK(value(made, 0, "UCX_NET_DEVICES") == "mlx5_0:1");
  CHECK(value(made, 3, "UCX_NET_DEVICES") == "mlx5_5:1");
}

TEST_CASE("one GPU per rank: all are seen, the same by every rank") {
  const Made made = make(hgx_h100());
  for (size_t r = 0; r < 8; ++r) {
    CHECK(value(made, r, "CUDA_VISIBLE_DEVICES") == "0,1,2,3,4,5,6,7");
    CHECK(value(made, r, "CUDA_DEVICE_ORDER") == "PCI_BUS_ID");
    CHECK(value(made, r, "ROCR_VISIBLE_DEVICES") == "(unset)");
  }
  // Slurm sets it in every task: only overriding has an effect.
  CHECK(of_rank(made, 0)["CUDA_VISIBLE_DEVICES"].set);
  CHECK_FALSE(of_rank(made, 0)["NCCL_IB_HCA"].set);
}

TEST_CASE("GPUs are named in Slurm's words") {
  Allocation a;
  a.gpus = {2, 5};
  Policy own;
  own.visible = Visible::own;
  // Numbers restart at 0 where Slurm hides the other devices.
  Made made = make(hgx_h100(), a, own, {.devices = {"0", "1"}});
  CHECK(value(made, 1, "CUDA_VISIBLE_DEVICES") == "1");
  CHECK(value(made, 1, "CUDA_DEVICE_ORDER") == "PCI_BUS_ID");
  made = make(hgx_h100(), a, own);
  CHECK(value(made, 1, "CUDA_VISIBLE_DEVICES") == "5");
  // Names need no order.
  made = make(hgx_h100(), a, {}, {.devices = {"GPU-11", "GPU-22"}});
  CHECK(value(made, 1, "CUDA_VISIBLE_DEVICES") == "GPU-11,GPU-22");
  CHECK(value(made, 1, "CUDA_DEVICE_ORDER") == "(unset)");
  // A list that does not fit says nothing.
  made = make(hgx_h100(), a, own, {.devices = {"0"}});
  CHECK(value(made, 1, "CUDA_VISIBLE_DEVICES") == "(unset)");
}

TEST_CASE("AMD and Intel have masks of their own; two vendors get none") {
  Machine amd = hgx_h100();
  for (Gpu& g : amd.gpus) g.vendor = Vendor::amd;
  Made made = make(amd);
  CHECK(value(made, 0, "ROCR_VISIBLE_DEVICES") == "0,1,2,3,4,5,6,7");
  CHECK(value(made, 0, "CUDA_VISIBLE_DEVICES") == "(unset)");
  CHECK(value(made, 0, "CUDA_DEVICE_ORDER") == "(unset)");

  Policy own;
  own.visible = Visible::own;
  Machine intel = hgx_h100();
  for (Gpu& g : intel.gpus) g.vendor = Vendor::intel;
  CHECK(value(make(intel), 0, "ZE_AFFINITY_MASK") == "(unset)");
  CHECK(value(make(intel, {}, own), 3, "ZE_AFFINITY_MASK") == "3");

  Machine mixed = hgx_h100();
  mixed.gpus[7].vendor = Vendor::amd;
  made = make(mixed);
  CHECK(value(made, 0, "CUDA_VISIBLE_DEVICES") == "(unset)");
  CHECK(value(made, 0, "ROCR_VISIBLE_DEVICES") == "(unset)");
}

TEST_CASE("a rank with GPUs on several memory nodes gets no port of its own") {
  Allocation a;
  a.ranks = 1;
  const Made made = make(hgx_h100(), a);
  CHECK(value(made, 0, "UCX_NET_DEVICES") == "(unset)");
  CHECK(value(made, 0, "NCCL_IB_HCA") != "(unset)");
  CHECK(value(made, 0, "CUDA_VISIBLE_DEVICES") == "0,1,2,3,4,5,6,7");
}

TEST_CASE("Slingshot and Amazon ports are not for NCCL_IB_HCA or UCX_NET_DEVICES") {
  Machine m = hgx_h100();
  for (Nic& n : m.nics) n.verbs = false;
  const Made made = make(m);
  CHECK(value(made, 0, "NCCL_IB_HCA") == "(unset)");
  CHECK(value(made, 0, "UCX_NET_DEVICES") == "(unset)");
  CHECK(made.plan.ranks[0].nics == std::vector<int>{0});
}

TEST_CASE("the socket interface is one name, exact for NCCL, plain for Gloo") {
  EnvOptions o;
  o.route = {"ens3", "leads to n2", false};
  Made made = make(hgx_h100(), {}, {}, o);
  CHECK(value(made, 0, "NCCL_SOCKET_IFNAME") == "=ens3");
  CHECK(value(made, 0, "GLOO_SOCKET_IFNAME") == "ens3");
  o.route = {"", "the job has one node", false};
  made = make(hgx_h100(), {}, {}, o);
  CHECK(value(made, 0, "NCCL_SOCKET_IFNAME") == "(unset)");
  CHECK(value(made, 0, "GLOO_SOCKET_IFNAME") == "(unset)");

  // Without a fabric NCCL spreads its sockets over all cards.
  Machine plain = box({1, 1, 8, 1, 8});
  add_gpu(plain, 0);
  o.route = {"eth0", "leads to n2", true};
  made = make(plain, {}, {}, o);
  CHECK(value(made, 0, "NCCL_SOCKET_IFNAME") == "(unset)");
  CHECK(value(made, 0, "GLOO_SOCKET_IFNAME") == "eth0");
}

TEST_CASE("env=set overrides, env=off leaves the network to others") {
  EnvOptions o;
  o.mode = EnvMode::set;
  CHECK(of_rank(make(hgx_h100(), {}, {}, o), 0)["NCCL_IB_HCA"].set);
  o.mode = EnvMode::off;
  const Made made = make(hgx_h100(), {}, {}, o);
  CHECK(value(made, 0, "NCCL_IB_HCA") == "(unset)");
  CHECK(value(made, 0, "UCX_NET_DEVICES") == "(unset)");
  CHECK(value(made, 0, "CUDA_VISIBLE_DEVICES") != "(unset)");
}

TEST_CASE("host lists are read as Slurm writes them") {
  using Names = std::vector<std::string>;
  CHECK(hosts("n1") == Names{"n1"});
  CHECK(hosts("n[1-3]") == Names{"n1", "n2", "n3"});
  CHECK(hosts("n[08-10,2],login-1,10.0.0.[1-2]") ==
        Names{"n08", "n09", "n10", "n2", "login-1", "10.0.0.1", "10.0.0.2"});
  CHECK(hosts("r[1-2]n[1-2]") == Names{"r1n1", "r1n2", "r2n1", "r2n2"});
  CHECK(hosts("n[1-2]-ib") == Names{"n1-ib", "n2-ib"});
  CHECK(hosts("").empty());
  // A limit bounds the work, whatever the list claims.
  CHECK(hosts("n[0-4000000000]", 2) == Names{"n0", "n1"});
  CHECK(hosts("a[0-999999]b[0-999999]c[0-999999]", 3).size() == 3);
  for (const char* bad : {"n[", "n[]", "n[a]", "n[3-1]", "n[1", "n]1[", "n;1", "n 1", "n$(x)",
                          "n[1,]", "n[-1]", "n[99999999999]", "n\x01"}) {
    CAPTURE(bad);
    CHECK_FALSE(expand_hosts(bad, 10).has_value());
  }
}

TEST_CASE("a host is found in a list without writing the list out") {
  for (const char* host : {"n1", "n4", "n07", "login", "r2n10", "x10", "x120", "10.0.0.3"})
    CHECK_MESSAGE(hosts_contain("n[1-4,07],login,r[1-2]n[8-11],x[1-12]0,10.0.0.[1-4]", host), host);
  for (const char* host : {"n5", "n7", "n01", "n", "", "n1x", "xn1", "login2", "r3n10", "r2n7",
                           "x130", "x1", "10.0.0.5"})
    CHECK_MESSAGE(!hosts_contain("n[1-4,07],login,r[1-2]n[8-11],x[1-12]0,10.0.0.[1-4]", host),
                  host);
  CHECK(hosts_contain("n[001-4000000000]", "n3999999999"));
  CHECK(hosts_contain("n[008-1000]", "n010"));
  CHECK_FALSE(hosts_contain("n[008-1000]", "n10"));
  for (const char* bad : {"", "n[", "n[]", "n[a]", "n[1", "n]1["})
    CHECK_MESSAGE(!hosts_contain(bad, "n1"), bad);
  // The same names as the list written out.
  for (const std::string& name : hosts("a[1-3,09-11]b[7-8]c"))
    CHECK(hosts_contain("a[1-3,09-11]b[7-8]c", name));
}

TEST_CASE("the route to a peer is the kernel's, or nothing") {
  const Deadline soon = Deadline::in(Seconds(5));
  CHECK(route_to_peer("n1", "n1", soon).why == "the job has one node");
  CHECK(route_to_peer("", "n1", soon).interface.empty());
  CHECK(route_to_peer("n[", "n1", soon).interface.empty());
  // A name that leads to this very host says nothing about the network.
  CHECK(route_to_peer("n1,127.0.0.1", "n1", soon).interface.empty());
  // Names under .invalid never resolve.
  CHECK(route_to_peer("n1,peer.invalid", "n1", soon).interface.empty());
}

TEST_CASE("an address of this host leads through the interface that has it") {
  ifaddrs* list = nullptr;
  REQUIRE(getifaddrs(&list) == 0);
  std::string name, address;
  for (const ifaddrs* i = list; i && name.empty(); i = i->ifa_next) {
    if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || (i->ifa_flags & IFF_LOOPBACK))
      continue;
    char text[INET_ADDRSTRLEN];
    const auto* in = reinterpret_cast<const sockaddr_in*>(i->ifa_addr);
    inet_ntop(AF_INET, &in->sin_addr, text, sizeof text);
    name = i->ifa_name;
    address = text;
  }
  freeifaddrs(list);
  if (name.empty()) {
    MESSAGE("skipped: no network but loopback");
    return;
  }
  const Route route = route_to_peer("n1," + address, "n1", Deadline::in(Seconds(20)));
  CHECK(route.interface == name);
  CHECK(route.why == "leads to " + address);
}
