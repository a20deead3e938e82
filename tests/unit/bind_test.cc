// Plans as a whole: of machines that people have, and of what is not there.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "bind/bind.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "plans.h"
#include "real_machines.h"

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
  const fs::path dir = real_machines();
  if (dir.empty()) return;
  for (const auto& entry : fs::directory_iterator(dir / "answers")) {
    const std::string name = entry.path().stem();
    CAPTURE(name);
    fs::path file = dir / "hwloc" / (name + ".xml");
    if (!fs::exists(file)) file = dir / "nccl-as-hwloc" / (name + ".xml");
    if (!fs::exists(file)) continue;
    std::ifstream in(entry.path());
    const json want = json::parse(in)["gpus"];
    if (want.empty()) continue;
    const Machine m = read_machine(file);
    const Plan p = make(m);
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
      if (m.numa.size() > 1) {
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
        const Nic& nic = m.nics[static_cast<size_t>(n)];
        CHECK_MESSAGE(nearest.contains(nic.name), nic.name);
        // Nobody shares while an equally near port idles.
        const auto& row = m.near[i];
        for (size_t other = 0; other < row.size(); ++other)
          if (p.nics[other].used && row[other] == row[static_cast<size_t>(n)] && users[n] > 1)
            CHECK(users[static_cast<int>(other)] > 0);
      }
    }
  }
}
