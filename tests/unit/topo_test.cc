#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "topo/topo.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "real_machines.h"
#include "temporary.h"

using namespace trainlaunch;
namespace fs = std::filesystem;

namespace {

const bool isolated = (isolate_hwloc(), true);

std::string source(const std::string& path) { return std::string(TL_SRCDIR) + '/' + path; }

}  // namespace

TEST_CASE("lists of numbers are read and written in Linux form") {
  CHECK(*parse_list("0-3,8,10-11", 16) == std::vector<int>{0, 1, 2, 3, 8, 10, 11});
  CHECK(*parse_list("5,1,1-2", 16) == std::vector<int>{1, 2, 5});
  CHECK(parse_list("", 16)->empty());
  CHECK(*parse_sequence("5,1,1-2", 16) == std::vector<int>{5, 1, 1, 2});
  CHECK_FALSE(parse_sequence("0-15,0-15", 16).has_value());
  CHECK(to_list(std::vector<int>{0, 1, 2, 3, 8, 10, 11}) == "0-3,8,10-11");
  CHECK(to_list(*parse_cpus("128-143,0-15")) == "0-15,128-143");
  for (const char* bad : {"a", "1-", "-1", "1,,2", "1,", ",1", "3-1", "16", "0-16", "1 2", "1-2-3",
                          "99999999999999999999", "0x1", "\x01"}) {
    CAPTURE(bad);
    const auto r = parse_list(bad, 16);
    REQUIRE_FALSE(r.has_value());
    CHECK(r.error().exit == exit_code::usage);
  }
}

TEST_CASE("the lab's machines are as they were meant") {
  const Machine m = read_machine(source("tests/lab/topologies/four-gpus.xml"));
  CHECK(m.kind == "hwloc-xml");
  CHECK(to_list(m.cpus) == "0-1");
  REQUIRE(m.cores.size() == 2);
  CHECK(m.cores[1].numa == 1);
  CHECK(m.cores[1].package == 1);
  REQUIRE(m.numa.size() == 2);
  REQUIRE(m.gpus.size() == 4);
  REQUIRE(m.nics.size() == 4);
  CHECK(to_string(m.gpus[2].pci) == "0000:83:00.0");
  CHECK(m.gpus[2].place.numa == 1);
  CHECK(m.nics[3].link_layer == LinkLayer::infiniband);
  CHECK(m.nics[3].rate_gbps == 400);
  CHECK(to_string(m.nics[3]) == "mlx5_3:1");
  for (size_t g = 0; g < 4; ++g)
    for (size_t n = 0; n < 4; ++n) {
      // One switch for each pair, one host bridge for each socket.
      const Level expected = g == n ? Level::pix : g / 2 == n / 2 ? Level::phb : Level::sys;
      CHECK(m.near[g][n].level == expected);
    }
}

TEST_CASE("only what computes is a GPU, only fabric ports are ports, only nodes with CPUs count") {
  const Machine m = read_machine(source("tests/data/odd-devices.xml"));
  // Partitions below one function, in the order of the driver's numbers; no display of a board
  // controller (ASPEED, ATI), no graphics inside the processor.
  REQUIRE(m.gpus.size() == 2);
  CHECK(to_string(m.gpus[0].pci) == "0000:01:00.0");
  CHECK(m.gpus[0].partition == 0);
  CHECK(m.gpus[0].uuid == "a");
  CHECK(m.gpus[1].partition == 1);
  CHECK(m.gpus[1].uuid == "b");
  CHECK(m.gpus[1].vendor == Vendor::amd);
  // Memory nodes: not the fast memory that has the same CPUs, not the GPU's.
  REQUIRE(m.numa.size() == 1);
  CHECK(m.numa[0].node == 0);
  CHECK(m.gpus[0].place.numa == 0);
  // What is forbidden is there, and known to be forbidden; numbers of cores stay Slurm's.
  CHECK(to_list(m.cpus) == "0-3");
  CHECK(to_list(m.allowed) == "1-3");
  REQUIRE(m.cores.size() == 2);
  CHECK(m.cores[0].cpus == std::vector<int>{0, 2});
  // Two ports of one device; Slingshot's network device; Amazon's device that NCCL does not open;
  // no plain Ethernet.
  REQUIRE(m.nics.size() == 4);
  CHECK(to_string(m.nics[0]) == "mlx4_0:1");
  CHECK(m.nics[0].active);
  CHECK(m.nics[0].link_layer == LinkLayer::infiniband);
  CHECK(to_string(m.nics[1]) == "mlx4_0:2");
  CHECK_FALSE(m.nics[1].active);
  CHECK(to_string(m.nics[2]) == "hsi0");
  CHECK(m.nics[2].link_layer == LinkLayer::slingshot);
  CHECK(m.nics[3].name == "rdmap6s0");
  CHECK_FALSE(m.nics[3].verbs);
}

TEST_CASE("cut off or damaged files are errors in one line, never crashes") {
  std::vector<std::string> texts{read_file(source("tests/data/odd-devices.xml")),
                                 read_file(source("tests/lab/topologies/four-gpus.xml"))};
  const fs::path dir = real_machines();
  if (!dir.empty()) texts.push_back(read_file(dir / "hwloc" / "fluxcore-tuo.SPX.xml"));
  std::mt19937 random(7);
  const auto check = [](const std::string& text) {
    const auto m = load_text(text, "file");
    if (m) return;
    CHECK(m.error().exit == exit_code::usage);
    CHECK(m.error().what.starts_with("file: "));
    CHECK(m.error().what.find('\n') == std::string::npos);
  };
  for (const std::string& text : texts) {
    // Without its end no file is whole.
    for (size_t i = 0; i < 60; ++i) {
      const std::string prefix = text.substr(0, i * (text.size() - 12) / 60);
      CHECK_FALSE(load_text(prefix, "file").has_value());
      check(prefix);
    }
    for (int i = 0; i < 60; ++i) {
      std::string damaged = text;
      for (int k = 0; k < 8; ++k)
        damaged[random() % damaged.size()] = "<>\"/=0f 9-x,"[random() % 12];
      check(damaged);
    }
  }
  check("");
  check(std::string("<topology\0", 10));
  check("<topology version=\"3.0\"/>");
}

TEST_CASE("files that are no topology are refused with the reason") {
  const auto why = [](const std::string& path) {
    const auto m = load_file(path);
    REQUIRE_FALSE(m.has_value());
    CHECK(m.error().exit == exit_code::usage);
    return m.error().what;
  };
  CHECK(why("/nowhere/x.xml") == "/nowhere/x.xml: No such file or directory");
  CHECK(why("/dev/zero") == "/dev/zero: not a regular file");
  CHECK(why("/tmp").starts_with("/tmp: not a copied machine"));
  CHECK(why(source("configure.ac")).find("not a topology file") != std::string::npos);
}

namespace {

const std::string topo_m =
    "\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV18\tPIX\tSYS\t0-3,8-11\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\tPXB\t4-7,12-15\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \tSYS\n"
    "NIC1\tSYS\tPXB\tSYS\t X \n"
    "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n"
    "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: rocep32s0f0\n";

void check_topo_m(const std::string& text) {
  CAPTURE(text);
  const auto m = load_text(text, "x");
  REQUIRE_MESSAGE(m.has_value(), (m ? "" : m.error().what));
  CHECK(m->kind == "topo-m");
  CHECK(m->made_up_ids);
  REQUIRE(m->gpus.size() == 2);
  REQUIRE(m->nics.size() == 2);
  CHECK(to_string(m->gpus[1].pci) == "fffffff0:01:00.0");
  CHECK(to_string(m->nics[1].pci) == "fffffff1:01:00.0");
  CHECK(m->nics[0].name == "mlx5_0");
  CHECK(m->nics[0].place.numa == 0);
  CHECK(m->nics[1].link_layer == LinkLayer::ethernet);
  CHECK(m->gpus[1].place.numa == 1);
  CHECK(to_list(m->gpus[1].place.cpus) == "4-7,12-15");
  CHECK(m->near[0][0].level == Level::pix);
  CHECK(m->near[1][1].level == Level::pxb);
  CHECK(m->near[0][1].level == Level::sys);
  // Two runs, equally far apart in both nodes: the threads of 8 cores.
  REQUIRE(m->cores.size() == 8);
  CHECK(m->cores[4].cpus == std::vector<int>{4, 12});
  CHECK(m->cores[4].numa == 1);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// The reason why a text is refused, which is one line.
std::string refused(const std::string& text) {
  CAPTURE(text.substr(0, 200));
  const auto m = load_text(text, "x");
  REQUIRE_FALSE(m.has_value());
  CHECK(m.error().exit == exit_code::usage);
  CHECK(m.error().what.starts_with("x:"));
  CHECK(m.error().what.size() < 400);
  CHECK(std::none_of(m.error().what.begin(), m.error().what.end(),
                     [](char c) { return c < ' ' && c >= 0; }));
  return m.error().what;
}

std::string nccl(const std::string& inside) {
  return "<system version=\"1\">\n" + inside + "\n</system>\n";
}

}  // namespace

TEST_CASE("topo -m is read as printed, pasted, underlined, commented or with its tabs lost") {
  check_topo_m(topo_m);
  check_topo_m(replaced(topo_m, "\n", "\r\n"));
  check_topo_m("$ nvidia-smi topo -m\n# a comment\n\n" + topo_m);
  check_topo_m("\033[4m" + replaced(topo_m, "\tGPU1\tNIC0", "\033[0m\t\033[4mGPU1\033[0m\tNIC0"));
  check_topo_m(replaced(replaced(topo_m, "\t", "    "), "CPU    Aff", "CPU Aff"));
  // Older drivers: names head the columns, and there is no legend.
  check_topo_m(replaced(replaced(topo_m.substr(0, topo_m.find("NIC0\tPIX")), "NIC0", "mlx5_0"),
                        "NIC1", "rocep32s0f0"));
}

TEST_CASE("topo -m: what it does not say stays unknown") {
  const auto m = load_text(
      "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\n"
      "GPU0\t X \tPHB\tPHB\t0-7\tN/A\n"
      "GPU1\tPHB\t X \tPHB\t\t1\n",
      "x");
  REQUIRE(m.has_value());
  CHECK(m->gpus[0].place.numa == -1);
  CHECK(m->gpus[1].place.numa == 1);
  CHECK(m->gpus[1].place.cpus.none());
  CHECK(m->numa.empty());
  CHECK_FALSE(m->nics[0].named);
  CHECK_FALSE(m->nics[0].verbs);
  CHECK(m->nics[0].place.numa == -1);
  REQUIRE(m->warnings.size() == 1);
  CHECK(m->warnings[0].message.find("no CPUs near GPU1") != std::string::npos);
}

TEST_CASE("topo -m: damage is told by its line") {
  const auto with = [](const std::string& from, const std::string& to) {
    return refused(replaced(topo_m, from, to));
  };
  CHECK(with("GPU1\tNV18", "GPU0\tNV18").starts_with("x:3: "));
  CHECK(with("\tPIX\tSYS\t0", "\tFOO\tSYS\t0").starts_with("x:2: 'FOO' between GPU0 and NIC0"));
  CHECK(with("0-3,8-11", "3-0").starts_with("x:2: CPU affinity '3-0'"));
  CHECK(with("0-3,8-11", "9223372036854775808").starts_with("x:2: "));
  CHECK(with("0-3,8-11", "0-8192").starts_with("x:2: "));
  CHECK(with("15\t1\t", "15\t-1\t").starts_with("x:3: NUMA affinity"));
  CHECK(with("NIC0\tNIC1\tCPU", "NIC0\tNIC0\tCPU").starts_with("x:1: 'NIC0' heads two"));
  CHECK(with("NIC0: mlx5_0", "NIC0: a;b").starts_with("x:14: 'a;b'"));
  CHECK(with("NIC0: mlx5_0", "NIC1: mlx5_0").starts_with("x:15: NIC1 has a name"));
  CHECK(refused(topo_m.substr(0, topo_m.find("GPU1\tNV"))).find("GPU1 has no row") !=
        std::string::npos);
  CHECK(refused("\tGPU0\tGPU1\nGPU0\t X \n").find("cut off") != std::string::npos);
  std::string wide = "\t";
  for (int i = 0; i < 5000; ++i) wide += "GPU" + std::to_string(i) + '\t';
  CHECK(refused(wide + '\n').starts_with("x:1: more than 256"));
}

TEST_CASE("memory nodes that claim the same CPUs are not believed") {
  const auto nccl_file = load_text(nccl("<cpu numaid=\"0\" affinity=\"f\"/>\n"
                                        "<cpu numaid=\"1\" affinity=\"f\"/>"),
                                   "x");
  const auto matrix =
      load_text(replaced(replaced(topo_m, "0-3,8-11", "0-7"), "4-7,12-15", "0-7"), "x");
  for (const auto* m : {&nccl_file, &matrix}) {
    REQUIRE(m->has_value());
    CHECK((*m)->numa.empty());
    for (const Gpu& gpu : (*m)->gpus) CHECK(gpu.place.numa == -1);
    REQUIRE_FALSE((*m)->warnings.empty());
    CHECK((*m)->warnings[0].code == "topology-affinity");
  }
}

TEST_CASE("NCCL's files: GPUs, ports and sockets are told apart") {
  const auto m =
      load_text(nccl("<cpu numaid=\"-1\" affinity=\"000000ff\">"
                     "<pci busid=\"0000:01:00.0\" class=\"0x060400\">"
                     "<pci busid=\"0000:02:00.0\" class=\"0x120000\" vendor=\"0x1002\">"
                     "<gpu dev=\"0\"/><gpu dev=\"1\"/></pci>"
                     "<pci busid=\"0000:03:00.0\" class=\"0x020000\" vendor=\"0x15b3\"><nic>"
                     "<net name=\"mlx5_bond_0\" speed=\"200000\" port=\"1\"/></nic></pci></pci>"
                     "<pci busid=\"0000:04:00.0\" class=\"0x020000\" vendor=\"0x17db\"><nic>"
                     "<net name=\"cxi0\" port=\"1\"/></nic></pci>"
                     "<pci busid=\"0000:05:00.0\" class=\"0x020000\" vendor=\"0x1d0f\"/>"
                     "<pci busid=\"0000:06:00.0\" class=\"0x030000\" vendor=\"0x1a03\"/>"
                     "<pci busid=\"0000:07:00.0\" class=\"0x030000\" vendor=\"0x102b\"/>"
                     "<nic><net name=\"eth0\" port=\"0\" speed=\"25000\"/></nic></cpu>"),
                "x");
  REQUIRE_MESSAGE(m.has_value(), (m ? "" : m.error().what));
  REQUIRE(m->gpus.size() == 2);  // partitions of one function; no display of a board controller
  CHECK(to_string(m->gpus[1]) == "0000:02:00.0/1");
  CHECK(m->gpus[1].place.numa == -1);  // never 0
  CHECK(m->numa.empty());
  REQUIRE(m->nics.size() == 3);
  CHECK(m->nics[0].link_layer == LinkLayer::ethernet);
  CHECK(m->nics[0].rate_gbps == 200);
  CHECK(m->nics[0].verbs);
  CHECK(m->near[1][0].level == Level::pix);
  CHECK(m->near[1][1].level == Level::sys);  // which memory nodes there are is not said
  CHECK(m->nics[1].link_layer == LinkLayer::slingshot);
  CHECK_FALSE(m->nics[1].verbs);
  CHECK_FALSE(m->nics[2].named);
  CHECK_FALSE(m->nics[2].verbs);
  REQUIRE(m->nets.size() == 1);
  CHECK(m->nets[0].rate_gbps == 25);
}

TEST_CASE("NCCL's files: damage and hostility are told by their line") {
  const auto cpu = [](const std::string& attributes) {
    return refused(nccl("<cpu " + attributes + "/>"));
  };
  CHECK(cpu("numaid=\"9223372036854775808\"").starts_with("x:2: numaid=\"9223372036854775808\""));
  CHECK(cpu("numaid=\"-2\"").starts_with("x:2: numaid"));
  CHECK(cpu("numaid=\"0\" affinity=\"xyz\"").starts_with("x:2: affinity=\"xyz\" is not"));
  CHECK(cpu("numaid=\"0\" affinity=\",,\"").starts_with("x:2: affinity"));
  CHECK(cpu("numaid=\"0\" affinity=\"-1\"").starts_with("x:2: affinity"));
  std::string high = "1";
  for (int i = 0; i < 300; ++i) high += ",00000000";
  CHECK(cpu("numaid=\"0\" affinity=\"" + high + '"').find("CPUs below 8192") != std::string::npos);
  CHECK(
      refused(nccl("<cpu numaid=\"0\"/>\n<cpu numaid=\"0\"/>")).starts_with("x:3: memory node 0"));
  CHECK(refused(nccl("")).find("no <cpu>") != std::string::npos);
  CHECK(refused(nccl("<cpu numaid=\"0\">")).starts_with("x:3: "));  // not closed
  const auto pci = [](const std::string& inside) {
    return refused(nccl("<cpu numaid=\"0\">\n<pci " + inside + "</cpu>"));
  };
  CHECK(pci("busid=\"0000:99:99.9\"/>").starts_with("x:3: busid=\"0000:99:99.9\" is not"));
  CHECK(pci("busid=\"0000:01:00.0\" class=\"0x1ffffff\"/>").starts_with("x:3: class"));
  CHECK(
      pci("busid=\"0000:01:00.0\" class=\"0x020000\"><nic>\n<net name=\"a\tb\x1b[2J\" port=\"1\"/>"
          "</nic></pci>")
          .starts_with("x:4: name=\"a b?[2J\" is not"));

  // A billion laughs: document types are skipped, entities are not known.
  std::string laughs = "<!DOCTYPE system [<!ENTITY a0 \"ha\">";
  for (int i = 1; i < 30; ++i)
    laughs += "<!ENTITY a" + std::to_string(i) + " \"&a" + std::to_string(i - 1) + ";&a" +
              std::to_string(i - 1) + ";\">";
  refused(laughs + "]>" + nccl("<cpu numaid=\"&a29;\"/>"));

  const std::string bridge = "<pci busid=\"0000:01:00.0\" class=\"0x060400\">";
  std::string deep = "<cpu numaid=\"0\">";
  for (int i = 0; i < 100'000; ++i) deep += bridge;
  for (int i = 0; i < 100'000; ++i) deep += "</pci>";
  CHECK(refused(nccl(deep + "</cpu>")).find("nested too deeply") != std::string::npos);

  const auto times = [](size_t n, const std::string& text) {
    std::string out;
    while (n--) out += text;
    return out;
  };
  CHECK(refused(nccl(times(2000, "<cpu/>"))).find("too many memory nodes") != std::string::npos);
  CHECK(pci("busid=\"0000:01:00.0\" class=\"0x030200\">" + times(2000, "<gpu/>") + "</pci>")
            .find("more than 1024 GPUs") != std::string::npos);
  CHECK(pci("busid=\"0000:01:00.0\" class=\"0x020000\"><nic>" +
            times(5000, "<net name=\"eth0\" port=\"0\"/>") + "</nic></pci>")
            .find("too many network devices") != std::string::npos);
  CHECK(refused(topo_m + times(100'000, "some prose\n")).find("too long") != std::string::npos);

  std::string many = "<cpu numaid=\"0\">";
  for (int i = 0; i < 3000; ++i) {
    char gpu[80];
    std::snprintf(gpu, sizeof gpu, "<pci busid=\"%04x:%02x:00.0\" class=\"0x030200\"/>", i / 256,
                  i % 256);
    many += gpu;
  }
  CHECK(refused(nccl(many + "</cpu>")).find("more than 1024 GPUs") != std::string::npos);
}

TEST_CASE("rocm-smi's memory nodes get CPUs from lscpu's lines") {
  const auto m = load_text(
      "GPU[0]\t\t: (Topology) Numa Node: 1\nGPU[0]\t\t: (Topology) Numa Affinity: 1\n"
      "GPU[1]\t\t: (Topology) Numa Node: -1\n"
      "NUMA node0 CPU(s):   0-3,8-11\nNUMA node1 CPU(s):   4-7,12-15\n",
      "x");
  REQUIRE(m.has_value());
  CHECK(m->gpus[0].place.numa == 1);
  CHECK(to_list(m->gpus[0].place.cpus) == "4-7,12-15");
  CHECK(m->gpus[1].place.numa == -1);
  CHECK(m->cores.size() == 8);
  CHECK(refused("GPU[0] : (Topology) Numa Node:").starts_with("x:1: "));
  CHECK(refused("GPU[0] : (Topology) Numa Node: 99999999999999999999").starts_with("x:1: "));
  CHECK(refused("GPU[999] : (Topology) Numa Node: 0").find("more than 256") != std::string::npos);
}

TEST_CASE("hwloc's files: what is too much, or compressed, is refused") {
  CHECK(refused(std::string("BZh91AY")).find("unpack") != std::string::npos);
  CHECK(refused(std::string("\x1f\x8b\x08\0", 4)).find("unpack") != std::string::npos);
  CHECK(refused(std::string("<system>\0</system>", 18)).find("not a text file") !=
        std::string::npos);
}

TEST_CASE("this machine can be read, whatever the environment says") {
  setenv("HWLOC_XMLFILE", "/nowhere.xml", 1);
  setenv("HWLOC_SYNTHETIC", "pu:3", 1);
  isolate_hwloc();
  const auto m = load_live();
  REQUIRE(m.has_value());
  CHECK(m->kind == "live");
  CHECK(m->cpus.any());
  CHECK(m->allowed.any());
  CHECK((m->allowed & ~m->cpus).none());
  CHECK_FALSE(m->cores.empty());
  CHECK(std::getenv("HWLOC_XMLFILE") == nullptr);
}
