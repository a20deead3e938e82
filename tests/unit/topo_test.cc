#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "topo/topo.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "topo/host.h"

using namespace trainlaunch;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

const bool isolated = (isolate_hwloc(), true);

std::string source(const std::string& path) { return std::string(TL_SRCDIR) + '/' + path; }

std::string content(const fs::path& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

Machine read(const std::string& path) {
  auto m = load_file(path);
  REQUIRE_MESSAGE(m.has_value(), (m ? "" : m.error().what));
  return std::move(*m);
}

// The folder of real machines' topology files, or nothing, with the reason said.
fs::path machines() {
  const char* shared = std::getenv("TL_SHARED");
  const fs::path dir = fs::path(shared && *shared ? shared : source("../shared")) / "topologies";
  if (fs::is_directory(dir)) return dir;
  MESSAGE("skipped: no topology files; TL_SHARED names the folder that has them");
  return {};
}

std::string level_word(Level level) {
  switch (level) {
    case Level::pix:
    case Level::pxb:
      return "switch";
    case Level::phb:
      return "hostbridge";
    case Level::node:
      return "numa";
    case Level::sys:
      return "sys";
  }
  return "?";
}

std::string word_of(const json& j) { return j.is_string() ? j.get<std::string>() : ""; }

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

TEST_CASE("rates and link layers are read as sysfs writes them") {
  CHECK(parse_rate("400 Gb/sec (4X NDR)") == 400);
  CHECK(parse_rate("2.5 Gb/sec (1X SDR)") == 2.5);
  CHECK(parse_rate("400") == 0);
  CHECK(parse_rate("") == 0);
  CHECK(parse_rate("-1 Gb/sec") == 0);
  CHECK(parse_link_layer("InfiniBand") == LinkLayer::infiniband);
  CHECK(parse_link_layer("Unknown") == LinkLayer::unknown);
}

TEST_CASE("the lab's machines are as they were meant") {
  const Machine m = read(source("tests/lab/topologies/four-gpus.xml"));
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
  const Machine m = read(source("tests/data/odd-devices.xml"));
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

// Differences of meaning, not of fact:
//  - a port is what a process can open: a NIC function without any device (the Omni-Path one of the
//    KNL file) is none for us;
//  - "package" (corona) is SYS in our words, with fewer steps than across packages.
TEST_CASE("real machines read as an independent reader reads them") {
  const fs::path dir = machines();
  if (dir.empty()) return;
  int files = 0;
  for (const auto& entry : fs::directory_iterator(dir / "answers")) {
    const std::string name = entry.path().stem();
    CAPTURE(name);
    fs::path file = dir / "hwloc" / (name + ".xml");
    if (!fs::exists(file)) file = dir / "nccl-as-hwloc" / (name + ".xml");
    if (!fs::exists(file)) continue;
    ++files;
    const json answer = json::parse(content(entry.path()));
    const Machine m = read(file);

    std::map<std::string, size_t> nic_at;
    for (size_t n = 0; n < m.nics.size(); ++n) nic_at[to_string(m.nics[n].pci)] = n;
    for (const json& nic : answer["fabric_nics"]) {
      if (!nic["names"].is_string()) continue;
      CAPTURE(nic["names"]);
      REQUIRE(nic_at.contains(nic["pci"]));
      const Nic& mine = m.nics[nic_at[nic["pci"]]];
      CHECK(mine.active == nic["active"].get<bool>());
      if (const std::string numa = word_of(nic["numa"]); numa.find(',') == std::string::npos)
        CHECK(std::to_string(mine.place.numa) == numa);
    }

    REQUIRE(m.gpus.size() == answer["gpus"].size());
    for (size_t g = 0; g < m.gpus.size(); ++g) {
      const json& want = answer["gpus"][g];
      CAPTURE(g);
      CHECK(to_string(m.gpus[g].pci) == word_of(want["pci"]));
      CHECK(std::to_string(m.gpus[g].place.numa) == word_of(want["numa"]));
      CHECK(m.gpus[g].place.cpus == *parse_cpus(word_of(want["cpus"])));

      Near best{Level::sys, 1 << 20};
      for (const Near& n : m.near[g]) best = std::min(best, n);
      const std::string level = word_of(want["level"]);
      if (level.empty()) {
        CHECK(m.nics.empty());
        continue;
      }
      CHECK(level_word(best.level) == (level == "package" ? "sys" : level));
      std::string nearest;
      for (const json& n : want["nearest_nics"]) nearest += '/' + word_of(n) + '/';
      for (size_t n = 0; n < m.nics.size(); ++n)
        if (m.near[g][n] == best)
          CHECK_MESSAGE(nearest.find('/' + m.nics[n].name + '/') != std::string::npos,
                        m.nics[n].name << " not in " << nearest);
    }
  }
  CHECK(files > 60);
}

TEST_CASE("cut off or damaged files are errors in one line, never crashes") {
  std::vector<std::string> texts{content(source("tests/data/odd-devices.xml")),
                                 content(source("tests/lab/topologies/four-gpus.xml"))};
  const fs::path dir = machines();
  if (!dir.empty()) texts.push_back(content(dir / "hwloc" / "fluxcore-tuo.SPX.xml"));
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
