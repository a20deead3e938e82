#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "env/env.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "env/hosts.h"
#include "env/nccl_topology.h"
#include "machines.h"
#include "real_machines.h"

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

TEST_CASE(
    "a variable's source is told; an option's wins over the site's, and that over the topology") {
  EnvOptions o;
  o.route = {"ens3", "leads to n2", false};
  o.variables = {{"", "NCCL_SOCKET_IFNAME", "=bond0"},
                 {"", "NCCL_IB_HCA", "=mlx5_0:1"},
                 {"", "UCX_NET_DEVICES", "mlx5_9:1"}};
  Made made = make(hgx_h100(), {}, {}, o);
  CHECK(of_rank(made, 0)["GLOO_SOCKET_IFNAME"].source == Source::topology);
  CHECK(of_rank(made, 0)["NCCL_SOCKET_IFNAME"].source == Source::site);
  CHECK(value(made, 0, "NCCL_SOCKET_IFNAME") == "=bond0");
  CHECK(value(made, 0, "NCCL_IB_HCA") == "=mlx5_0:1");
  for (size_t r = 0; r < 8; ++r) CHECK(value(made, r, "UCX_NET_DEVICES") == "mlx5_9:1");
  CHECK_FALSE(of_rank(made, 0)["NCCL_IB_HCA"].set);

  Policy listed;
  listed.nic = NicMode::list;
  listed.nics = {"mlx5_3"};
  o.nics_from = Source::option;
  made = make(hgx_h100(), {}, listed, o);
  CHECK(value(made, 0, "NCCL_IB_HCA") == "=mlx5_3:1");
  CHECK(of_rank(made, 0)["NCCL_IB_HCA"].source == Source::option);
  CHECK(value(made, 0, "UCX_NET_DEVICES") == "mlx5_3:1");
  CHECK(value(made, 0, "NCCL_SOCKET_IFNAME") == "=bond0");
  // Who wants no port set does not get the site's.
  Policy none;
  none.nic = NicMode::off;
  made = make(hgx_h100(), {}, none, o);
  CHECK(value(made, 0, "NCCL_IB_HCA") == "(unset)");
  // The same list of the site's own does not keep its variables out.
  o.nics_from = Source::site;
  CHECK(value(make(hgx_h100(), {}, listed, o), 0, "NCCL_IB_HCA") == "=mlx5_0:1");
  o.mode = EnvMode::set;
  CHECK(of_rank(make(hgx_h100(), {}, {}, o), 0)["NCCL_SOCKET_IFNAME"].set);
  o.mode = EnvMode::off;
  CHECK(value(make(hgx_h100(), {}, {}, o), 0, "NCCL_SOCKET_IFNAME") == "(unset)");
}

TEST_CASE("the site's variables for a kind of port are set where such a port is used") {
  EnvOptions o;
  o.variables = {{"efa", "FI_PROVIDER", "efa"},     {"slingshot", "FI_PROVIDER", "cxi"},
                 {"", "FI_PROVIDER", "tcp"},        {"infiniband", "NCCL_IB_SL", "1"},
                 {"infiniband", "NCCL_IB_SL", "2"}, {"roce", "NCCL_IB_TC", "106"}};
  Machine m = hgx_h100();
  CHECK(value(make(m, {}, {}, o), 0, "FI_PROVIDER") == "tcp");
  CHECK(value(make(m, {}, {}, o), 0, "NCCL_IB_SL") == "1");
  CHECK(value(make(m, {}, {}, o), 0, "NCCL_IB_TC") == "(unset)");
  for (Nic& n : m.nics) n.link_layer = LinkLayer::ethernet;
  CHECK(value(make(m, {}, {}, o), 0, "NCCL_IB_TC") == "106");
  for (Nic& n : m.nics) n.verbs = false;
  CHECK(value(make(m, {}, {}, o), 0, "NCCL_IB_TC") == "(unset)");
  CHECK(kind_of(m.nics[0]) == std::string("ethernet"));
  for (Nic& n : m.nics) n.vendor = 0x1d0f;
  CHECK(value(make(m, {}, {}, o), 0, "FI_PROVIDER") == "efa");
  for (Nic& n : m.nics) n.vendor = 0x17db, n.link_layer = LinkLayer::slingshot;
  const Made made = make(m, {}, {}, o);
  CHECK(value(made, 0, "FI_PROVIDER") == "cxi");
  CHECK(of_rank(made, 0)["FI_PROVIDER"].why == "the site's for slingshot");
  Policy none;
  none.nic = NicMode::off;
  CHECK(value(make(m, {}, none, o), 0, "FI_PROVIDER") == "tcp");
}

// sgl-project/sglang issue 3685: "76 NICs found". NCCL takes 32.
TEST_CASE("no more ports than NCCL takes, those of the ranks first") {
  Machine m = box({2, 1, 56, 2, 56});
  add_gpu(m, 0);
  add_gpu(m, 1);
  for (int n = 0; n < 40; ++n) add_nic(m, n % 2);
  link(m, 0, 38, Level::node, 0);
  link(m, 1, 39, Level::node, 0);
  // A plan leaves the rest out by itself, with a reason; a list is the user's own.
  const Made cut = make(m);
  const std::string kept = value(cut, 0, "NCCL_IB_HCA");
  CHECK(std::count(kept.begin(), kept.end(), ',') == 31);
  REQUIRE(cut.env.warnings.size() == 1);
  CHECK(cut.env.warnings[0].code == "nic-many");
  CHECK(cut.env.warnings[0].message.find("of 40 usable ones") != std::string::npos);

  Policy p;
  p.nic = NicMode::list;
  for (const Nic& n : m.nics) p.nics.push_back(n.name);
  auto made_plan = plan(m, {}, p);
  REQUIRE(made_plan.has_value());
  made_plan->ranks[0].nics = {38};
  made_plan->ranks[1].nics = {39};
  const Environment env = environment(m, *made_plan, {});
  REQUIRE(env.common.size() > 2);
  const auto hca = std::find_if(env.common.begin(), env.common.end(),
                                [](const Variable& v) { return v.name == "NCCL_IB_HCA"; });
  REQUIRE(hca != env.common.end());
  CHECK(std::count(hca->value.begin(), hca->value.end(), ',') == 31);
  CHECK(hca->value.starts_with("=mlx5_0:1,mlx5_1:1,"));
  CHECK(hca->value.ends_with("mlx5_29:1,mlx5_38:1,mlx5_39:1"));
  REQUIRE(env.warnings.size() == 1);
  CHECK(env.warnings[0].code == "nic-many");
}

// NVIDIA-NeMo/nemo-platform pull 922: mlx5_1 would match mlx5_10 to mlx5_19 too.
TEST_CASE("the list of ports is exact, and has no name that could be taken for several") {
  Machine m = hgx_h100();
  m.nics[0].name = "mlx5_0,mlx5_3";
  m.nics[1].named = false;
  const std::string list = value(make(m), 0, "NCCL_IB_HCA");
  CHECK(list == "=mlx5_2:1,mlx5_5:1,mlx5_6:1,mlx5_7:1,mlx5_8:1,mlx5_9:1");
}

// Parsl/parsl issue 3858: GPUs masked twice are none.
TEST_CASE("on AMD only ROCR's mask is left") {
  Machine amd = hgx_h100();
  for (Gpu& g : amd.gpus) g.vendor = Vendor::amd;
  CHECK(make(amd).env.unset ==
        std::vector<std::string>{"CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"});
  CHECK(make(hgx_h100()).env.unset.empty());
  Allocation asked;
  asked.asked.gpu = true;
  CHECK(make(amd, asked).env.unset.empty());
}

// nanoporetech/dorado issue 1586: one instance for each rank, by the name that CUDA knows.
TEST_CASE("instances of a GPU go by their UUIDs") {
  Machine m = box({1, 1, 8, 1, 8});
  for (int g = 0; g < 2; ++g) {
    add_gpu(m, 0);
    m.gpus.back().pci.bus = 0x10;
    m.gpus.back().mig = g == 0 ? "MIG-a" : "MIG-b";
  }
  Policy own;
  own.visible = Visible::own;
  CHECK(value(make(m, {}, own), 1, "CUDA_VISIBLE_DEVICES") == "MIG-b");
  CHECK(value(make(m, {}, own), 1, "CUDA_DEVICE_ORDER") == "(unset)");
  // In Slurm's form, if it has one.
  CHECK(value(make(m, {}, own, {.devices = {"MIG-GPU-1/7/0", "MIG-GPU-1/8/0"}}), 1,
              "CUDA_VISIBLE_DEVICES") == "MIG-GPU-1/8/0");
}

// NVIDIA/nccl issue 601, and Slingshot without a plugin: sockets carry the data.
TEST_CASE("sockets that carry the data over several cards are not tied to one") {
  Machine m = hgx_h100();
  for (Nic& n : m.nics) n.verbs = false, n.link_layer = LinkLayer::slingshot;
  EnvOptions o;
  o.route = {"hsi0", "leads to n2", true};
  CHECK(value(make(m, {}, {}, o), 0, "NCCL_SOCKET_IFNAME") == "(unset)");
  CHECK(value(make(m, {}, {}, o), 0, "GLOO_SOCKET_IFNAME") == "hsi0");
  o.route.several_nics = false;
  CHECK(value(make(m, {}, {}, o), 0, "NCCL_SOCKET_IFNAME") == "=hsi0");
}

namespace {

// What a published file says of hgx_h100().
Machine file_of(const Machine& m) {
  Machine file = m;
  file.kind = "nccl-xml";
  return file;
}
std::string wrong(const Machine& file, const Machine& m) {
  const auto s = is_of_machine(file, m);
  return s ? "" : s.error().what;
}

}  // namespace

// Azure/azhpc-images pulls 391 and 393, issue 327.
TEST_CASE("a topology file for NCCL is used only if it is of this machine") {
  const Machine m = hgx_h100();
  Machine file = file_of(m);
  CHECK(wrong(file, m).empty());
  // Some have the PCI tree alone.
  file.cpus.reset();
  file.numa.clear();
  for (Nic& n : file.nics) n.named = false, n.name = to_string(n.pci);
  for (Gpu& g : file.gpus) g.place = {};
  CHECK(wrong(file, m).empty());

  file = file_of(m);
  file.cpus.reset(223);
  CHECK(wrong(file, m) == "it has CPUs 0-222, this machine 0-223");
  file = file_of(m);
  file.numa.clear();  // the loader's answer to CPUs that are in two nodes
  CHECK(wrong(file, m) == "its memory nodes share CPUs");
  file = file_of(m);
  std::swap(file.numa[0].cpus, file.numa[1].cpus);
  CHECK(wrong(file, m) == "it has CPUs 56-111,168-223 in memory node 0, this machine 0-55,112-167");
  file = file_of(m);
  std::swap(file.gpus[0].place, file.gpus[7].place);
  CHECK(wrong(file, m) == "it has GPU 0000:10:00.0 in memory node 1, this machine in 0");
  file = file_of(m);
  file.gpus[2].pci.bus = 0x77;
  CHECK(wrong(file, m) == "it has GPU 0000:77:00.0, this machine has not");
  file = file_of(m);
  file.gpus.pop_back();
  CHECK(wrong(file, m) == "it does not have GPU 0000:17:00.0");
  file = file_of(m);
  file.nics[1].pci.bus = 0x99;
  CHECK(wrong(file, m) == "it has port mlx5_1 at 0000:99:00.0, this machine has not");
  file.gpus.clear();
  CHECK(wrong(file, m) == "it has no GPU");

  // A guest that hides its memory nodes can contradict no more than it knows.
  Machine guest = m;
  guest.numa = {{0, m.cpus}};
  for (Gpu& g : guest.gpus) g.place = {m.cpus, -1};
  CHECK(wrong(file_of(m), guest).empty());
}

TEST_CASE("the plan names a matching file to NCCL, and says why it does not name another") {
  EnvOptions o;
  o.nccl_topology = "/nonexistent/topology.xml";
  const Made made = make(hgx_h100(), {}, {}, o);
  CHECK(value(made, 0, "NCCL_TOPO_FILE") == "(unset)");
  REQUIRE(made.env.warnings.size() == 1);
  CHECK(made.env.warnings[0].code == "topology-mismatch");
  CHECK(made.env.warnings[0].message.find("/nonexistent/topology.xml") != std::string::npos);

  // The file made from a machine is of that machine.
  char name[] = "/tmp/nccl-topology-XXXXXX";
  const int fd = mkstemp(name);
  REQUIRE(fd >= 0);
  const Machine m = hgx_h100();
  const std::string text = *nccl_topology(m, {"x86_64", "AuthenticAMD", 143, 49});
  REQUIRE(write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  close(fd);
  o.nccl_topology = name;
  const Made good = make(m, {}, {}, o);
  CHECK(value(good, 0, "NCCL_TOPO_FILE") == name);
  CHECK(of_rank(good, 0)["NCCL_TOPO_FILE"].source == Source::site);
  CHECK(good.env.warnings.empty());
  // And says of it what was known.
  const auto back = load_file(name);
  REQUIRE_MESSAGE(back.has_value(), back.error().what);
  REQUIRE(back->gpus.size() == 8);
  REQUIRE(back->nics.size() == m.nics.size());
  for (size_t g = 0; g < 8; ++g) {
    CHECK(back->gpus[g].pci == m.gpus[g].pci);
    CHECK(back->gpus[g].place.numa == m.gpus[g].place.numa);
    for (size_t n = 0; n < m.nics.size(); ++n)
      CHECK((back->near[g][n].level == Level::pix) == (m.near[g][n].level == Level::pix));
  }
  unlink(name);
}

TEST_CASE("published files for NCCL: on their own machines, on others, and wrong ones") {
  const std::filesystem::path dir = real_machines();
  if (dir.empty()) return;
  // The machines as hwloc would show them.
  const Machine azure = read_machine(dir / "nccl-as-hwloc/azure-ndv4-topo.hwloc.xml");
  const Machine amazon = read_machine(dir / "nccl-as-hwloc/aws-p4d-24xl-topo.hwloc.xml");
  const auto check = [&](const char* file, const Machine& m) {
    const auto s = check_nccl_topology(dir / "nccl" / file, m);
    return s ? std::string() : s.error().what;
  };
  CHECK(check("azure-ndv4-topo.xml", azure).empty());
  CHECK(check("aws-p4d-24xl-topo.xml", amazon).empty());
  CHECK_FALSE(check("azure-ndv4-topo.xml", amazon).empty());
  CHECK_FALSE(check("aws-p4d-24xl-topo.xml", azure).empty());
  // The copy that kept the masks of before Azure/azhpc-images pull 393: two nodes with one set.
  CHECK(check("superbench-ndv4-topo.xml", azure).find("its memory nodes share CPUs") !=
        std::string::npos);
  // Not in NCCL's form.
  CHECK(check("../nccl-as-hwloc/azure-ndv4-topo.hwloc.xml", azure).find("not in NCCL's format") !=
        std::string::npos);
}

TEST_CASE("a file for NCCL has what NCCL does not start without") {
  const std::string text = *nccl_topology(hgx_h100(), {"x86_64", "GenuineIntel", 6, 143});
  // 0-55,112-167 in words of 32 bits.
  CHECK(text.find(
            "<cpu numaid=\"0\" affinity=\"000000ff,ffffffff,ffff0000,00000000,00ffffff,ffffffff\" "
            "arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"143\">") !=
        std::string::npos);
  CHECK(text.find("<net name=\"mlx5_5\" port=\"1\" speed=\"400000\"/>") != std::string::npos);
  const std::string arm = *nccl_topology(hgx_h100(), {"arm64", "", 0, 0});
  CHECK(arm.find("arch=\"arm64\">") != std::string::npos);

  Machine hidden = hgx_h100();
  for (Gpu& g : hidden.gpus) g.place = {hidden.cpus, -1};
  CHECK_FALSE(nccl_topology(hidden, {"x86_64", "", 0, 0}).has_value());
  hidden.gpus.clear();
  CHECK_FALSE(nccl_topology(hidden, {"x86_64", "", 0, 0}).has_value());
}

TEST_CASE("the parts of a device are one function in a file for NCCL") {
  Machine m = box({1, 1, 8, 1, 8});
  for (int g = 0; g < 3; ++g) {
    add_gpu(m, 0);
    m.gpus.back().pci.bus = 0x10;
    m.gpus.back().partition = g;
    m.gpus.back().vendor = Vendor::amd;
  }
  const std::string text = *nccl_topology(m, {"x86_64", "", 0, 0});
  CHECK(text.find("0000:10:00.0") == text.rfind("0000:10:00.0"));
}

TEST_CASE("CPU families are reckoned as NCCL does from CPUID") {
  const std::string rome =
      "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 23\nmodel\t\t: 49\n"
      "model name\t: AMD EPYC 7742\n";
  const CpuModel amd = cpu_model("x86_64", rome);
  CHECK(amd.vendor == "AuthenticAMD");
  CHECK(amd.family == 143);
  CHECK(amd.model == 49);
  CHECK(cpu_model("x86_64", "cpu family : 6\nmodel : 143\n").family == 6);
  CHECK(cpu_model("aarch64", rome).arch == "arm64");
  CHECK(cpu_model("aarch64", rome).vendor.empty());
  CHECK(cpu_model("ppc64le", "").arch == "ppc64");
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
  for (const char* bad : {"", "n[", "n[]", "n[a]", "n[1", "n]1[", "n[1-2],log7],login"})
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
