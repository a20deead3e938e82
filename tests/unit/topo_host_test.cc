// What is read beside hwloc: the kernel's files, in made-up trees, and NVML, from a made-up
// library.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>

#include "machines.h"
#include "temporary.h"
#include "topo/host.h"
#include "topo/nvml.h"

using namespace trainlaunch;
namespace fs = std::filesystem;

namespace {

class Tree {
 public:
  void file(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root() + path).parent_path());
    write_file(root() + path, text);
  }
  void link(const std::string& path, const std::string& to) {
    fs::create_directories(fs::path(root() + path).parent_path());
    fs::create_symlink(to, root() + path);
  }
  void port(const std::string& name, int port, const std::string& state, const std::string& rate,
            const std::string& layer) {
    const std::string dir = "/sys/class/infiniband/" + name + "/ports/" + std::to_string(port);
    file(dir + "/state", state + "\n");
    file(dir + "/rate", rate + "\n");
    file(dir + "/link_layer", layer + "\n");
  }
  const std::string& root() const { return tmp_.path(); }

 private:
  Temporary tmp_;
};

Machine two_gpus(Vendor vendor = Vendor::nvidia) {
  Machine m = box({2, 1, 4, 1, 4});
  for (int g = 0; g < 2; ++g) {
    add_gpu(m, g);
    m.gpus.back().vendor = vendor;
    m.gpus.back().pci = {0, static_cast<uint8_t>(g ? 0x65 : 0x17), 0, 0};
  }
  add_nic(m, 0, LinkLayer::unknown, 0);
  add_nic(m, 1, LinkLayer::unknown, 0);
  return m;
}

}  // namespace

TEST_CASE("rates and link layers are read as sysfs writes them") {
  CHECK(parse_rate("400 Gb/sec (4X NDR)") == 400);
  CHECK(parse_rate("2.5 Gb/sec (1X SDR)") == 2.5);
  CHECK(parse_rate("400") == 0);
  CHECK(parse_rate("") == 0);
  CHECK(parse_rate("-1 Gb/sec") == 0);
  CHECK(parse_rate("nan Gb/sec") == 0);
  CHECK(parse_rate("1e300 Gb/sec") == 0);
  CHECK(parse_link_layer("InfiniBand") == LinkLayer::infiniband);
  CHECK(parse_link_layer("Unknown") == LinkLayer::unknown);
}

TEST_CASE("ports: state, rate, link layer and network devices come from sysfs") {
  Tree t;
  t.port("mlx5_0", 1, "4: ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand");
  t.file("/sys/class/infiniband/mlx5_0/device/net/ib0/dev_port", "0\n");
  t.file("/sys/class/infiniband/mlx5_0/device/net/ib1/dev_port", "1\n");
  t.port("mlx5_1", 1, "1: DOWN", "10 Gb/sec (1X)", "Ethernet");
  t.file("/sys/class/infiniband/mlx5_1/ports/1/gid_attrs/ndevs/0", "bond0\n");
  Machine m = two_gpus();
  t.link("/sys/bus/pci/devices/" + to_string(m.nics[1].pci) + "/physfn", "../0000:00:00.0");
  add_host_facts(m, t.root());
  CHECK(m.nics[0].active);
  CHECK(m.nics[0].rate_gbps == 400);
  CHECK(m.nics[0].link_layer == LinkLayer::infiniband);
  CHECK(m.nics[0].nets == std::vector<std::string>{"ib0"});
  CHECK_FALSE(m.nics[0].virtual_function);
  CHECK_FALSE(m.nics[1].active);
  CHECK(m.nics[1].link_layer == LinkLayer::ethernet);
  CHECK(m.nics[1].nets == std::vector<std::string>{"bond0"});
  CHECK(m.nics[1].virtual_function);
  CHECK_FALSE(m.nics[1].opens.has_value());
}

TEST_CASE("ports: what is not there stays as it was, and what is no file is not read") {
  Tree t;
  const std::string port = t.root() + "/sys/class/infiniband/mlx5_0/ports/1";
  fs::create_directories(port);
  REQUIRE(std::system(("mkfifo '" + port + "/state'").c_str()) == 0);
  Machine m = two_gpus();
  m.nics[0].active = false;
  m.nics[1].rate_gbps = 200;
  add_host_facts(m, t.root());
  CHECK_FALSE(m.nics[0].active);
  CHECK(m.nics[1].active);
  CHECK(m.nics[1].rate_gbps == 200);
  CHECK_FALSE(m.gpus[0].minor.has_value());
  CHECK(m.nets.empty());
}

TEST_CASE("ports: the verbs device of each is tried") {
  Tree t;
  t.file("/sys/class/infiniband_verbs/uverbs7/ibdev", "mlx5_0\n");
  t.file("/sys/class/infiniband_verbs/uverbs3/ibdev", "mlx5_1\n");
  t.file("/dev/infiniband/uverbs7", "");
  Machine m = two_gpus();
  Nic slingshot = m.nics[0];
  slingshot.name = "hsi0";
  slingshot.verbs = false;
  m.nics.push_back(slingshot);
  try_ports(m, t.root());
  CHECK(m.nics[0].opens == true);
  CHECK(m.nics[1].opens == false);
  CHECK_FALSE(m.nics[2].opens.has_value());
}

TEST_CASE("Slingshot ports are what their network devices are") {
  Tree t;
  t.file("/sys/class/net/hsi0/operstate", "up\n");
  t.file("/sys/class/net/hsi0/speed", "200000\n");
  t.file("/sys/class/net/hsi1/operstate", "down\n");
  t.file("/sys/class/net/hsi1/speed", "-1\n");
  Machine m = two_gpus();
  for (size_t i = 0; i < 2; ++i) {
    m.nics[i].name = "hsi" + std::to_string(i);
    m.nics[i].link_layer = LinkLayer::slingshot;
  }
  add_host_facts(m, t.root());
  CHECK(m.nics[0].active);
  CHECK(m.nics[0].rate_gbps == 200);
  CHECK_FALSE(m.nics[1].active);
  CHECK(m.nics[1].rate_gbps == 0);
}

TEST_CASE("network devices: bonds are among them, loopback is not") {
  Tree t;
  t.file("/sys/class/net/lo/operstate", "unknown\n");
  t.file("/sys/class/net/lo/type", "772\n");
  t.file("/sys/class/net/bonding_masters", "bond0\n");
  t.file("/sys/class/net/bond0/operstate", "up\n");
  t.file("/sys/class/net/bond0/type", "1\n");
  t.file("/sys/class/net/bond0/speed", "50000\n");
  t.file("/sys/class/net/eth1/operstate", "down\n");
  t.link("/sys/class/net/eth1/device", "../../../0000:3b:00.1");
  Machine m = two_gpus();
  m.nets.push_back({"bond0", std::nullopt, std::nullopt, 0, place(m, 0)});
  add_host_facts(m, t.root());
  REQUIRE(m.nets.size() == 2);
  CHECK(m.nets[0].up == true);
  CHECK(m.nets[0].rate_gbps == 50);
  CHECK(m.nets[1].name == "eth1");
  CHECK(m.nets[1].up == false);
  REQUIRE(m.nets[1].pci.has_value());
  CHECK(to_string(*m.nets[1].pci) == "0000:3b:00.1");
}

TEST_CASE("GPU minors come from the drivers, whatever their order") {
  Tree t;
  t.file("/proc/driver/nvidia/gpus/0000:17:00.0/information",
         "Model: \t\t NVIDIA H100\nIRQ:   \t\t 121\nDevice Minor: \t 5\nGPU Excluded:\t No\n");
  Machine m = two_gpus();
  add_host_facts(m, t.root());
  CHECK(m.gpus[0].minor == 5);
  CHECK_FALSE(m.gpus[1].minor.has_value());

  t.file("/sys/bus/pci/devices/0000:65:00.0/drm/renderD130/dev", "226:130\n");
  t.file("/sys/bus/pci/devices/0000:65:00.0/drm/card2/dev", "226:2\n");
  Machine intel = two_gpus(Vendor::intel);
  add_host_facts(intel, t.root());
  CHECK(intel.gpus[1].minor == 130);
}

TEST_CASE("AMD's driver tells the partitions of a GPU, and UUIDs") {
  Tree t;
  const std::string nodes = "/sys/class/kfd/kfd/topology/nodes/";
  t.file(nodes + "0/properties", "cpu_cores_count 8\nsimd_count 0\n");
  // One whole GPU, and one in three partitions; location_id is bus << 8, and their number.
  t.file(nodes + "1/properties",
         "simd_count 304\nlocation_id 5888\ndomain 0\ndrm_render_minor 128\nunique_id 4660\n");
  for (int i = 0; i < 3; ++i)
    t.file(nodes + std::to_string(2 + i) + "/properties",
           "simd_count 100\nlocation_id " + std::to_string(0x6500 + i) +
               "\ndomain 0\ndrm_render_minor " + std::to_string(129 + i) + "\nunique_id 255\n");
  Machine m = two_gpus(Vendor::amd);
  add_host_facts(m, t.root());
  REQUIRE(m.gpus.size() == 4);
  REQUIRE(m.near.size() == 4);
  CHECK_FALSE(m.gpus[0].partition.has_value());
  CHECK(m.gpus[0].uuid == "GPU-0000000000001234");
  CHECK(m.gpus[0].minor == 128);
  for (int i = 0; i < 3; ++i) {
    const Gpu& part = m.gpus[static_cast<size_t>(1 + i)];
    CHECK(to_string(part) == "0000:65:00.0/" + std::to_string(i));
    CHECK(part.index == 1 + i);
    CHECK(part.minor == 129 + i);
    CHECK(part.place.numa == 1);
    CHECK(m.near[static_cast<size_t>(1 + i)] == m.near[1]);
  }
}

TEST_CASE("NVML tells UUIDs, minors and MIG instances") {
  unsetenv("FAKE_NVML");
  const auto known = read_nvml(FAKE_NVML_LIBRARY);
  REQUIRE_MESSAGE(known.has_value(), (known ? "" : known.error().what));
  REQUIRE(known->size() == 2);
  Machine m = two_gpus();
  add_nvml_facts(m, *known);
  REQUIRE(m.gpus.size() == 3);
  CHECK(m.gpus[0].uuid == "GPU-a");
  CHECK(m.gpus[0].minor == 1);
  CHECK(m.gpus[0].mig.empty());
  CHECK(m.gpus[1].mig == "MIG-one");
  CHECK(m.gpus[2].mig == "MIG-two");
  CHECK(to_string(m.gpus[2]) == "0000:65:00.0/MIG-two");
  CHECK(m.gpus[2].uuid == "GPU-b");
  CHECK(m.gpus[2].index == 2);
  CHECK(m.near.size() == 3);

  // Not NVIDIA's, or another function: nothing is known of it.
  Machine amd = two_gpus(Vendor::amd);
  add_nvml_facts(amd, *known);
  CHECK(amd.gpus.size() == 2);
  CHECK(amd.gpus[0].uuid.empty());
}

TEST_CASE("a GPU in MIG mode without instances is none, and said to be") {
  setenv("FAKE_NVML", "empty", 1);
  const auto known = read_nvml(FAKE_NVML_LIBRARY);
  REQUIRE(known.has_value());
  Machine m = two_gpus();
  add_nvml_facts(m, *known);
  CHECK(m.gpus.size() == 1);
  REQUIRE(m.warnings.size() == 1);
  CHECK(m.warnings[0].code == "mig-empty");
}

TEST_CASE("no NVML, or a broken one, is an error that leaves all as it was") {
  CHECK_FALSE(read_nvml("libnvidia-ml-that-is-not-there.so.1").has_value());
  setenv("FAKE_NVML", "broken", 1);
  CHECK_FALSE(read_nvml(FAKE_NVML_LIBRARY).has_value());
}
