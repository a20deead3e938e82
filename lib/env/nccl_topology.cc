#include "env/nccl_topology.h"

#include <sys/utsname.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

namespace trainlaunch {
namespace {

std::set<PciId> functions_of(const std::vector<Gpu>& gpus) {
  std::set<PciId> out;
  for (const Gpu& g : gpus) out.insert(g.pci);
  return out;
}

Status same_cpus(const Machine& file, const Machine& machine) {
  if (file.cpus.none()) return {};  // NCCL looks for itself
  if (file.numa.empty()) return fail("its memory nodes share CPUs");
  if (file.cpus != machine.cpus)
    return fail("it has CPUs " + to_list(file.cpus) + ", this machine " + to_list(machine.cpus));
  // A virtual machine may have fewer nodes than its host, but those it has are true.
  if (machine.numa.size() < 2) return {};
  for (const NumaNode& n : file.numa) {
    const auto same = std::find_if(machine.numa.begin(), machine.numa.end(),
                                   [&](const NumaNode& o) { return o.node == n.node; });
    const std::string node = "memory node " + std::to_string(n.node);
    if (same == machine.numa.end()) return fail("it has " + node + ", which this machine has not");
    if (same->cpus != n.cpus)
      return fail("it has CPUs " + to_list(n.cpus) + " in " + node + ", this machine " +
                  to_list(same->cpus));
  }
  return {};
}

Status same_gpus(const Machine& file, const Machine& machine) {
  const auto theirs = functions_of(file.gpus), ours = functions_of(machine.gpus);
  for (const PciId& id : theirs)
    if (!ours.contains(id)) return fail("it has GPU " + to_string(id) + ", this machine has not");
  for (const PciId& id : ours)
    if (!theirs.contains(id)) return fail("it does not have GPU " + to_string(id));
  if (machine.numa.size() < 2) return {};
  std::map<PciId, int> node_of;
  for (const Gpu& g : machine.gpus) node_of[g.pci] = g.place.numa;
  for (const Gpu& g : file.gpus) {
    const int here = node_of[g.pci];
    if (here >= 0 && g.place.numa >= 0 && here != g.place.numa)
      return fail("it has GPU " + to_string(g.pci) + " in memory node " +
                  std::to_string(g.place.numa) + ", this machine in " + std::to_string(here));
  }
  return {};
}

Status known_ports(const Machine& file, const Machine& machine) {
  for (const Nic& n : file.nics) {
    if (!n.named) continue;  // only a PCI function: NCCL drops it if it finds nothing there
    const bool known = std::any_of(machine.nics.begin(), machine.nics.end(), [&](const Nic& o) {
      return o.name == n.name && o.pci == n.pci;
    });
    if (!known)
      return fail("it has port " + n.name + " at " + to_string(n.pci) + ", this machine has not");
  }
  return {};
}

// Sets that are joined pair by pair.
class Groups {
 public:
  explicit Groups(size_t n) : parent_(n) { std::iota(parent_.begin(), parent_.end(), size_t{0}); }
  size_t of(size_t i) const {
    while (parent_[i] != i) i = parent_[i];
    return i;
  }
  void join(size_t a, size_t b) { parent_[std::max(of(a), of(b))] = std::min(of(a), of(b)); }

 private:
  std::vector<size_t> parent_;
};

// Words of 32 bits, the highest first.
std::string mask(const CpuSet& cpus) {
  std::string out;
  for (int word = max_cpu / 32 - 1; word >= 0; --word) {
    uint32_t bits = 0;
    for (int i = 0; i < 32; ++i)
      if (cpus.test(static_cast<size_t>(word * 32 + i))) bits |= uint32_t{1} << i;
    if (bits == 0 && out.empty() && word > 0) continue;
    char text[12];
    std::snprintf(text, sizeof text, "%s%08x", out.empty() ? "" : ",", bits);
    out += text;
  }
  return out;
}

class Writer {
 public:
  Writer(const Machine& m, const CpuModel& cpu)
      : m_(m), cpu_(cpu), leaf_(m.gpus.size() + m.nics.size()), root_(leaf_) {
    std::map<PciId, size_t> functions;  // parts of a GPU, and ports, may have one in common
    for (size_t d = 0; d < m.gpus.size() + m.nics.size(); ++d) {
      const size_t first = functions.emplace(function(d), d).first->second;
      leaf_.join(first, d);
      root_.join(first, d);
    }
    for (size_t g = 0; g < m.gpus.size(); ++g)
      for (size_t n = 0; n < m.nics.size(); ++n) {
        const Level level = m.near[g][n].level;
        if (level == Level::pix) leaf_.join(g, m.gpus.size() + n);
        if (level <= Level::pxb) root_.join(g, m.gpus.size() + n);
      }
  }

  Result<std::string> run() {
    for (const Gpu& g : m_.gpus)
      if (g.place.numa < 0 && m_.numa.size() != 1)
        return fail("in which memory node GPU " + to_string(g.pci) +
                    " is, this machine does not say; plan for a file that does: --topology FILE");
    open("<system version=\"1\">");
    for (const NumaNode& n : m_.numa) cpu(n);
    close("</system>");
    return std::move(out_);
  }

 private:
  bool is_gpu(size_t device) const { return device < m_.gpus.size(); }
  const Nic& port(size_t device) const { return m_.nics[device - m_.gpus.size()]; }
  const PciId& function(size_t device) const {
    return is_gpu(device) ? m_.gpus[device].pci : port(device).pci;
  }

  static constexpr const char* fastest = "32.0 GT/s PCIe";  // the devices' own limit comes first

  void line(const std::string& text) { out_ += std::string(2 * depth_, ' ') + text + '\n'; }
  void open(const std::string& text) {
    line(text);
    ++depth_;
  }
  void close(const char* text) {
    --depth_;
    line(text);
  }

  void cpu(const NumaNode& node) {
    std::string tag = "<cpu numaid=\"" + std::to_string(node.node) + "\" affinity=\"" +
                      mask(node.cpus) + "\" arch=\"" + cpu_.arch + '"';
    if (!cpu_.vendor.empty())
      tag += " vendor=\"" + cpu_.vendor + "\" familyid=\"" + std::to_string(cpu_.family) +
             "\" modelid=\"" + std::to_string(cpu_.model) + '"';
    open(tag + '>');
    std::map<size_t, std::vector<size_t>> trees;  // what is below one root switch
    for (size_t d = 0; d < m_.gpus.size() + m_.nics.size(); ++d)
      if (node_of(root_.of(d)) == node.node) trees[root_.of(d)].push_back(d);
    for (const auto& [root, devices] : trees) tree(devices);
    close("</cpu>");
  }

  // The memory node of a device, the first of those below its root switch: a GPU if there is one. A
  // port that stands alone and is nowhere goes to the first node, as NCCL itself would have it.
  int node_of(size_t device) const {
    const int node = is_gpu(device) ? m_.gpus[device].place.numa : port(device).place.numa;
    const bool known = std::any_of(m_.numa.begin(), m_.numa.end(),
                                   [&](const NumaNode& n) { return n.node == node; });
    return known ? node : m_.numa.front().node;
  }

  void tree(const std::vector<size_t>& devices) {
    std::map<size_t, std::vector<size_t>> leaves;
    std::set<PciId> functions;
    for (size_t d : devices) {
      leaves[leaf_.of(d)].push_back(d);
      functions.insert(function(d));
    }
    if (functions.size() == 1) return leaf(devices);
    open_switch();
    for (const auto& [first, below] : leaves) {
      if (leaves.size() > 1) open_switch();
      leaf(below);
      if (leaves.size() > 1) close("</pci>");
    }
    close("</pci>");
  }

  // Bus numbers that no machine has, as the published files use them.
  void open_switch() {
    ++switches_;
    char text[128];
    std::snprintf(text, sizeof text,
                  "<pci busid=\"ffff:%02x:%02x.0\" class=\"0x060400\" link_speed=\"%s\" "
                  "link_width=\"16\">",
                  0xffu - switches_ / 32, switches_ % 32, fastest);
    open(text);
  }

  void leaf(const std::vector<size_t>& devices) {
    std::map<PciId, std::vector<size_t>> functions;
    for (size_t d : devices) functions[function(d)].push_back(d);
    for (const auto& [id, parts] : functions) {
      const std::string tag = "<pci busid=\"" + to_string(id) + "\" class=\"";
      if (is_gpu(parts.front()))
        line(tag + (m_.gpus[parts.front()].vendor == Vendor::nvidia ? "0x030200" : "0x038000") +
             "\"/>");
      else
        ports(tag, parts);
    }
  }

  // Only verbs ports have the names that NCCL knows them by.
  void ports(const std::string& tag, const std::vector<size_t>& parts) {
    const Nic& first = port(parts.front());
    const bool infiniband = first.link_layer == LinkLayer::infiniband;
    const bool named = first.verbs && first.named;
    const std::string pci = tag + (infiniband ? "0x020700" : "0x020000") + '"';
    if (!named) return line(pci + "/>");
    open(pci + '>');
    open("<nic>");
    for (size_t d : parts) {
      const Nic& p = port(d);
      std::string net = "<net name=\"" + p.name + "\" port=\"" + std::to_string(p.port) + '"';
      if (p.rate_gbps > 0)
        net += " speed=\"" + std::to_string(std::lround(p.rate_gbps * 1000)) + '"';
      line(net + "/>");
    }
    close("</nic>");
    close("</pci>");
  }

  const Machine& m_;
  const CpuModel& cpu_;
  Groups leaf_, root_;  // GPUs, then ports
  std::string out_;
  size_t depth_ = 0;
  unsigned switches_ = 0;
};

// The value of the first "key : value" line.
std::string value_of(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key)) continue;
    const size_t end = line.find_first_not_of(" \t", key.size());
    if (end == std::string::npos || line[end] != ':') continue;
    const size_t value = line.find_first_not_of(" \t", end + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

int number_of(const std::string& text) {
  int n = 0;
  std::from_chars(text.data(), text.data() + text.size(), n);
  return n;
}

}  // namespace

Status is_of_machine(const Machine& file, const Machine& machine) {
  if (file.gpus.empty()) return fail("it has no GPU");
  if (machine.made_up_ids) return fail("the plan's machine has no bus numbers to compare");
  for (const auto check : {same_cpus, same_gpus, known_ports})
    if (auto s = check(file, machine); !s) return s;
  return {};
}

Status check_nccl_topology(const std::string& path, const Machine& machine) {
  auto file = load_file(path);
  if (!file) return forward(file);
  if (file->kind != "nccl-xml") return fail(path + ": not in NCCL's format, but " + file->kind);
  if (auto s = is_of_machine(*file, machine); !s)
    return fail(path + " is not of this machine: " + s.error().what);
  return {};
}

CpuModel cpu_model(const std::string& machine, const std::string& cpuinfo) {
  CpuModel cpu;
  cpu.arch = machine == "aarch64" ? "arm64" : machine.starts_with("ppc64") ? "ppc64" : machine;
  if (cpu.arch != "x86_64") return cpu;
  cpu.vendor = value_of(cpuinfo, "vendor_id");
  if (cpu.vendor.find_first_of("\"&<>") != std::string::npos) cpu.vendor.clear();
  // The kernel adds CPUID's extended family to the base, NCCL puts it four bits above.
  constexpr int base = 15;
  const int family = number_of(value_of(cpuinfo, "cpu family"));
  cpu.family = family > base ? base + ((family - base) << 4) : family;
  cpu.model = number_of(value_of(cpuinfo, "model"));
  return cpu;
}

CpuModel this_cpu() {
  utsname host{};
  uname(&host);
  std::ostringstream text;
  text << std::ifstream("/proc/cpuinfo").rdbuf();
  return cpu_model(host.machine, text.str());
}

Result<std::string> nccl_topology(const Machine& machine, const CpuModel& cpu) {
  if (machine.gpus.empty()) return fail("this machine has no GPU");
  if (machine.numa.empty()) return fail("this machine has no memory nodes");
  if (machine.made_up_ids)
    return fail(machine.file + " does not say which bus numbers its devices have");
  return Writer(machine, cpu).run();
}

}  // namespace trainlaunch
