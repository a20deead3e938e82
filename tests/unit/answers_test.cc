// Every topology file of real machines that there is, read by every loader, planned for, and
// compared with what independent readers found: each GPU's memory node, CPUs and nearest usable
// ports.
//
// Where this project disagrees, the table `differences` says so and why. The test fails on a
// disagreement that is not listed, and on a listed one that is none.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "bind/bind.h"
#include "real_machines.h"
#include "temporary.h"
#include "topo/topo.h"

using namespace trainlaunch;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

const bool isolated = (isolate_hwloc(), true);

struct Difference {
  const char* file;
  const char* about;  // "numa", "cpus", "nearest", "level", "active", "port", "pair", "left out"
};

const std::vector<Difference> differences = {
    // 34 memory nodes, of which 0 and 1 have CPUs; the answer repeats the whole column. The rank's
    // memory comes from the node with the GPU's CPUs.
    {"topo-m/gb200-nvl-8nic", "numa"},
    {"topo-m/gb200-nvl-8nic-nogpunuma", "numa"},
    // Printed inside a job that had CPUs 0-3 only: nodes 0 and 8 both have CPUs on this machine,
    // and
    // nothing in the text tells which one the GPU is in. So it is unknown.
    {"topo-m/traverse-ac922-slurm-1task", "numa"},
    // Both ports are equally far from every GPU but GPU 6, and each serves four GPUs in both.
    {"topo-m/rtx4090x8-dual-socket", "pair"},
};

class Comparison {
 public:
  explicit Comparison(std::string file) : file_(std::move(file)) {}
  ~Comparison() {
    for (const Difference& d : differences)
      if (file_ == d.file)
        CHECK_MESSAGE(found_.contains(d.about),
                      file_ << " is listed to differ in " << d.about << ", and does not");
  }

  void same(const std::string& about, const std::string& where, const std::string& mine,
            const std::string& want) {
    ++compared;
    if (mine != want) differ(about, where + ": " + mine + ", the answer is " + want);
  }
  void differ(const std::string& about, const std::string& what) {
    found_.insert(about);
    const bool listed =
        std::any_of(differences.begin(), differences.end(),
                    [&](const Difference& d) { return file_ == d.file && about == d.about; });
    CHECK_MESSAGE(listed, file_ << " differs in " << about << ": " << what);
  }

  int compared = 0;

 private:
  std::string file_;
  std::set<std::string> found_;
};

std::vector<fs::path> files_in(const fs::path& dir, const std::string& end) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(dir))
    if (entry.path().filename().string().ends_with(end)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::string word(const json& j) { return j.is_string() ? j.get<std::string>() : ""; }

std::string joined(const std::set<std::string>& words) {
  std::string out;
  for (const std::string& w : words) out += (out.empty() ? "" : ",") + w;
  return out;
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

std::string numa_word(int node) { return node < 0 ? "unknown" : std::to_string(node); }

// The nearest ports of GPU g, by their PCI functions; with a plan only those that it uses.
std::pair<Near, std::set<std::string>> nearest(const Machine& m, size_t g, const Plan* p) {
  Near best{Level::sys, 1 << 20};
  std::set<std::string> ports;
  for (size_t n = 0; n < m.nics.size(); ++n) {
    if (p && !p->nics[n].used) continue;
    if (m.near[g][n] < best) ports.clear();
    best = std::min(best, m.near[g][n]);
    if (m.near[g][n] == best) ports.insert(to_string(m.nics[n].pci));
  }
  return {best, ports};
}

Plan whole_plan(const Machine& m) {
  auto p = plan(m, Allocation{}, Policy{});
  REQUIRE_MESSAGE(p.has_value(), (p ? "" : p.error().what));
  return std::move(*p);
}

// The answers to hwloc's files, and to NCCL's: those know no host bridges and no packages.
void compare_with_answer(const Machine& m, const json& answer, Comparison& c) {
  std::map<std::string, std::string> pci_of;  // NIC name -> PCI function
  for (const json& nic : answer["fabric_nics"]) {
    const std::string pci = nic["pci"];
    if (!nic["names"].is_string()) continue;  // a function without any device cannot be opened
    pci_of[nic["names"]] = pci;
    const auto mine = std::find_if(m.nics.begin(), m.nics.end(),
                                   [&](const Nic& n) { return to_string(n.pci) == pci; });
    if (mine == m.nics.end()) {
      c.differ("port", pci + " is missing");
      continue;
    }
    c.same("active", pci, mine->active ? "up" : "down", nic["active"].get<bool>() ? "up" : "down");
    if (const std::string numa = word(nic["numa"]); numa.find(',') == std::string::npos)
      c.same("numa", pci, numa_word(mine->place.numa), numa);
  }
  const auto functions = [&](const json& nics) {
    std::set<std::string> out;
    for (const json& name : nics)
      if (name.is_string()) out.insert(pci_of.contains(name) ? pci_of[name] : word(name));
    return out;
  };

  REQUIRE(m.gpus.size() == answer["gpus"].size());
  const Plan p = whole_plan(m);
  for (size_t g = 0; g < m.gpus.size(); ++g) {
    const json& want = answer["gpus"][g];
    const std::string gpu = "GPU " + std::to_string(g);
    c.same("pci", gpu, to_string(m.gpus[g].pci), want["pci"]);
    c.same("numa", gpu, numa_word(m.gpus[g].place.numa), word(want["numa"]));
    c.same("cpus", gpu, to_list(m.gpus[g].place.cpus), to_list(*parse_cpus(word(want["cpus"]))));
    for (const bool usable : {false, true}) {
      const auto [near, mine] = nearest(m, g, usable ? &p : nullptr);
      const std::string level = word(want[usable ? "active_level" : "level"]);
      c.same("level", gpu, mine.empty() ? "" : level_word(near.level),
             level == "package" ? "sys" : level);
      const auto theirs = functions(want[usable ? "nearest_active_nics" : "nearest_nics"]);
      // Finer than theirs where bridges are counted.
      if (!std::includes(theirs.begin(), theirs.end(), mine.begin(), mine.end()))
        c.differ("nearest", gpu + ": " + joined(mine) + ", the answer is " + joined(theirs));
    }
    const auto usable = functions(want["nearest_active_nics"]);
    for (int n : p.ranks[g].nics)
      if (!usable.contains(to_string(m.nics[static_cast<size_t>(n)].pci)))
        c.differ("pair", gpu + " gets " + to_string(m.nics[static_cast<size_t>(n)]) +
                             ", the answer is one of " + joined(usable));
    if (p.ranks[g].nics.empty() && !usable.empty())
      c.differ("pair", gpu + " gets none, the answer is one of " + joined(usable));
  }
}

}  // namespace

TEST_CASE("hwloc's files say what an independent reader finds in them") {
  const fs::path dir = real_machines();
  if (dir.empty()) return;
  int files = 0;
  for (const char* folder : {"hwloc", "nccl-as-hwloc"})
    for (const fs::path& file : files_in(dir / folder, ".xml")) {
      ++files;
      CAPTURE(file);
      const Machine m = read_machine(file);
      CHECK(m.kind == "hwloc-xml");
      Comparison c(std::string(folder) + '/' + file.filename().string());
      compare_with_answer(
          m, json::parse(read_file(dir / "answers" / (file.stem().string() + ".json"))), c);
    }
  CHECK(files >= 80);
}

TEST_CASE("NCCL's files say what an independent reader finds in them") {
  const fs::path dir = real_machines();
  if (dir.empty()) return;
  int files = 0, without = 0;
  for (const fs::path& file : files_in(dir / "nccl", ".xml")) {
    CAPTURE(file);
    const Machine m = read_machine(file);
    CHECK(m.kind == "nccl-xml");
    CHECK_FALSE(m.made_up_ids);
    const fs::path answer = dir / "answers" / (file.stem().string() + ".hwloc.json");
    if (!fs::exists(answer)) {  // their CPUs are not said, or said in a way that cannot be
      ++without;
      CHECK(std::any_of(m.warnings.begin(), m.warnings.end(),
                        [](const Warning& w) { return w.code == "topology-affinity"; }));
      CHECK(m.numa.empty());
      continue;
    }
    ++files;
    Comparison c("nccl/" + file.filename().string());
    compare_with_answer(m, json::parse(read_file(answer)), c);
  }
  CHECK(files >= 52);
  CHECK(without == 3);
}

TEST_CASE("pasted topo -m says what an independent reader finds in it") {
  const fs::path dir = real_machines();
  if (dir.empty()) return;
  const json answers = json::parse(read_file(dir / "topo-m" / "ANSWERS.json"));
  for (const auto& [name, answer] : answers.items()) {
    CAPTURE(name);
    Comparison c("topo-m/" + name);
    const Machine m = read_machine(dir / "topo-m" / (name + ".topo.txt"));
    CHECK(m.kind == "topo-m");
    CHECK(m.made_up_ids);
    REQUIRE(m.gpus.size() == answer["n_gpus"].get<size_t>());
    const Plan p = whole_plan(m);
    for (size_t g = 0; g < m.gpus.size(); ++g) {
      const json& want = answer["gpus"][g];
      const std::string gpu = word(want["gpu"]);
      const std::string numa = word(want["numa"]);
      c.same("numa", gpu, numa_word(m.gpus[g].place.numa),
             numa.empty() || numa == "N/A" ? "unknown" : numa);
      c.same("cpus", gpu, to_list(m.gpus[g].place.cpus), word(want["cpus"]));

      std::set<std::string> theirs;
      for (const json& n : want["nearest_names"]) theirs.insert(n);
      std::set<std::string> mine, usable;
      Near best{Level::sys, 1 << 20}, best_usable = best;
      for (size_t n = 0; n < m.nics.size(); ++n) {
        best = std::min(best, m.near[g][n]);
        if (p.nics[n].used) best_usable = std::min(best_usable, m.near[g][n]);
      }
      for (size_t n = 0; n < m.nics.size(); ++n) {
        if (m.near[g][n] == best) mine.insert(m.nics[n].name);
        if (p.nics[n].used && m.near[g][n] == best_usable) usable.insert(m.nics[n].name);
      }
      c.same("level", gpu, usable.empty() ? "" : name_of(best_usable.level), word(want["label"]));
      c.same("nearest", gpu, joined(usable), joined(theirs));
      std::set<std::string> pair;
      for (int n : p.ranks[g].nics) pair.insert(m.nics[static_cast<size_t>(n)].name);
      // A GPU gets several where there are more ports than GPUs.
      const std::string one = word(want["one_nic_name"]);
      if (one.empty() != pair.empty() || (!one.empty() && !pair.contains(one)))
        c.differ("pair", gpu + ": " + joined(pair) + ", the answer is " + one);
    }
    std::set<std::string> left_out, excluded;
    for (size_t n = 0; n < m.nics.size(); ++n)
      if (!p.nics[n].used) left_out.insert(m.nics[n].name);
    for (const json& n : answer["excluded_nics"]) excluded.insert(n);
    for (const std::string& n : excluded)
      if (!left_out.contains(n)) c.differ("left out", n + " is used, and should not be");
    CHECK(c.compared > 0);
  }
  // Each file is one of ours, has an answer, or is prose.
  int files = 0;
  for (const fs::path& file : files_in(dir / "topo-m", ".txt")) {
    const std::string name = file.filename();
    if (name.ends_with(".topo.txt")) CHECK(answers.contains(name.substr(0, name.size() - 9)));
    ++files;
  }
  CHECK(files >= 31);
}

// There are no answers to these, but the files and their notes are short enough to be read.
TEST_CASE("rocm-smi's memory nodes are read, and prose is refused") {
  const fs::path dir = real_machines();
  if (dir.empty()) return;
  const auto nodes = [&](const char* name) {
    const Machine m = read_machine(dir / "topo-m" / name);
    CHECK(m.kind == "showtoponuma");
    CHECK(m.cpus.none());  // the files name them in comments only
    std::string out;
    for (const Gpu& g : m.gpus) {
      CHECK(g.vendor == Vendor::amd);
      out += std::to_string(g.place.numa);
    }
    return out;
  };
  CHECK(nodes("lumi-g-mi250x.showtoponuma.txt") == "33110022");
  CHECK(nodes("mi300a-spx4.showtoponuma.txt") == "0123");
  CHECK(nodes("mi300x-8.showtoponuma.txt") == "00001111");
  const auto prose = load_file(dir / "topo-m" / "gh200x4-alps.facts.txt");
  REQUIRE_FALSE(prose.has_value());
  CHECK(prose.error().exit == exit_code::usage);
}

TEST_CASE("copied trees of /sys say what hwloc's files of the same machines say") {
  const fs::path dir = real_machines();
  if (dir.empty()) return;
  const Temporary tmp;
  const auto unpacked = [&](const std::string& name) -> fs::path {
    const std::string command = "tar -xjf '" + (dir / "sysfs" / (name + ".tar.bz2")).string() +
                                "' -C '" + tmp.path() + "' 2>/dev/null";
    if (std::system(command.c_str()) != 0) return {};
    return tmp / name;
  };
  for (const auto& [name, answer] :
       {std::pair{"fakepcilocalities", "hwloc-linux-fakepcilocalities.v2conv"},
        {"nvidiagpunumanodes", "sysfs-nvidiagpunumanodes"}}) {
    CAPTURE(name);
    const fs::path tree = unpacked(name);
    if (tree.empty()) {
      MESSAGE("skipped: tar cannot unpack bzip2 here");
      return;
    }
    const Machine m = read_machine(tree);
    CHECK(m.kind == "sysfs");
    const json want = json::parse(read_file(dir / "answers" / (std::string(answer) + ".json")));
    Comparison c(std::string("sysfs/") + name);
    compare_with_answer(m, want, c);
    REQUIRE(m.numa.size() == want["numa_nodes"].size());
    for (size_t i = 0; i < m.numa.size(); ++i) {
      CHECK(m.numa[i].node == want["numa_nodes"][i]["node"].get<int>());
      CHECK(to_list(m.numa[i].cpus) == word(want["numa_nodes"][i]["cpus"]));
    }
  }
  // hwloc leaves out what it cannot place in these two; CPUs and memory nodes are whole.
  const Machine domains = read_machine(unpacked("2pa-pcidomain32bits"));
  CHECK(domains.cpus.count() == 2);
  const Machine conflicts = read_machine(unpacked("40intel64-4n10c+pci-conflicts"));
  CHECK(conflicts.cpus.count() == 40);
  CHECK(conflicts.numa.size() == 4);
}
