#include "topo/assemble.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>

namespace trainlaunch {
namespace {

// The package that holds all of a place; -1 when none does.
int package_of(const Machine& m, const Place& place) {
  int package = -1;
  for (const Core& core : m.cores) {
    if (!place.cpus.test(static_cast<size_t>(core.cpus.front()))) continue;
    if (package >= 0 && core.package != package) return -1;
    package = core.package;
  }
  return package;
}

struct Spot {
  const Path& path;
  int package;
};

Near distance(const Spot& a, const Spot& b) {
  const auto& above_a = a.path.bridges;
  const auto& above_b = b.path.bridges;
  for (size_t i = 0; i < above_b.size(); ++i) {
    const auto common = std::find(above_a.begin(), above_a.end(), above_b[i]);
    if (common == above_a.end()) continue;
    const auto passed_a = static_cast<int>(common - above_a.begin());
    const auto passed_b = static_cast<int>(i);
    if (a.path.host && common + 1 == above_a.end()) return {Level::phb, passed_a + passed_b};
    // A switch is two bridges: its upstream port is the common one, a downstream port is passed.
    return {std::max(passed_a, passed_b) <= 1 ? Level::pix : Level::pxb, passed_a + passed_b};
  }
  if (a.path.node >= 0 && a.path.node == b.path.node) return {Level::node, 0};
  return {Level::sys, a.package >= 0 && a.package == b.package ? 0 : 1};
}

// The first CPUs of the two runs that a set is; nothing when it is anything else.
struct Runs {
  size_t first, second, length;
};
std::optional<Runs> two_runs(const CpuSet& cpus) {
  std::vector<std::pair<size_t, size_t>> runs;  // first, length
  for (size_t i = cpus._Find_first(); i < cpus.size(); i = cpus._Find_next(i)) {
    if (runs.empty() || runs.back().first + runs.back().second != i) runs.emplace_back(i, 0);
    ++runs.back().second;
    if (runs.size() > 2) return std::nullopt;
  }
  if (runs.size() != 2 || runs[0].second != runs[1].second) return std::nullopt;
  return Runs{runs[0].first, runs[1].first, runs[0].second};
}

// How far the second threads are from the first ones; 0 when the sets do not say.
size_t thread_stride(const std::vector<CpuSet>& groups) {
  size_t stride = 0;
  for (const CpuSet& cpus : groups) {
    if (cpus.none()) continue;
    const auto runs = two_runs(cpus);
    if (!runs || (stride && runs->second - runs->first != stride)) return 0;
    stride = runs->second - runs->first;
  }
  return stride;
}

template <class Int>
bool take_hex(std::string_view& text, size_t digits_min, size_t digits_max, Int& value) {
  unsigned long number = 0;
  const char* end = text.data() + std::min(text.size(), digits_max);
  const auto [stop, error] = std::from_chars(text.data(), end, number, 16);
  const auto digits = static_cast<size_t>(stop - text.data());
  if (error != std::errc() || digits < digits_min) return false;
  text.remove_prefix(digits);
  value = static_cast<Int>(number);
  return true;
}

bool take_char(std::string_view& text, char c) {
  if (!text.starts_with(c)) return false;
  text.remove_prefix(1);
  return true;
}

}  // namespace

Status take_devices(Machine& m, std::vector<FoundGpu> gpus, std::vector<FoundNic> nics) {
  if (gpus.size() > max_gpus) return fail("more than " + std::to_string(max_gpus) + " GPUs");
  if (nics.size() > max_nics) return fail("more than " + std::to_string(max_nics) + " ports");
  std::stable_sort(gpus.begin(), gpus.end(), [](const FoundGpu& a, const FoundGpu& b) {
    return std::tie(a.gpu.pci, a.gpu.partition) < std::tie(b.gpu.pci, b.gpu.partition);
  });
  std::stable_sort(nics.begin(), nics.end(), [](const FoundNic& a, const FoundNic& b) {
    return std::tie(a.nic.pci, a.nic.port) < std::tie(b.nic.pci, b.nic.port);
  });
  std::vector<int> packages;
  for (const FoundNic& n : nics) packages.push_back(package_of(m, n.nic.place));
  for (FoundGpu& g : gpus) {
    g.gpu.index = static_cast<int>(m.gpus.size());
    const Spot from{g.path, package_of(m, g.gpu.place)};
    std::vector<Near> row;
    for (size_t n = 0; n < nics.size(); ++n)
      row.push_back(distance(from, {nics[n].path, packages[n]}));
    m.near.push_back(std::move(row));
    m.gpus.push_back(std::move(g.gpu));
  }
  for (FoundNic& n : nics) m.nics.push_back(std::move(n.nic));
  return {};
}

void split_gpus(Machine& m, const std::function<std::vector<Gpu>(const Gpu&)>& parts) {
  std::vector<Gpu> gpus;
  std::vector<std::vector<Near>> near;
  for (size_t g = 0; g < m.gpus.size(); ++g)
    for (Gpu& gpu : parts(m.gpus[g])) {
      gpu.index = static_cast<int>(gpus.size());
      gpus.push_back(std::move(gpu));
      near.push_back(m.near[g]);
    }
  m.gpus = std::move(gpus);
  m.near = std::move(near);
}

void guess_cores(Machine& m, const std::vector<CpuSet>& groups) {
  const size_t stride = thread_stride(groups);
  CpuSet taken;
  for (size_t cpu = m.cpus._Find_first(); cpu < m.cpus.size(); cpu = m.cpus._Find_next(cpu)) {
    if (taken.test(cpu)) continue;
    Core core;
    core.cpus.push_back(static_cast<int>(cpu));
    if (stride && cpu + stride < m.cpus.size() && m.cpus.test(cpu + stride)) {
      core.cpus.push_back(static_cast<int>(cpu + stride));
      taken.set(cpu + stride);
    }
    for (const NumaNode& n : m.numa)
      if (n.cpus.test(cpu)) core.numa = n.node;
    m.cores.push_back(std::move(core));
  }
}

void warn_of_missing_cpus(Machine& m) {
  CpuSet all;
  size_t last = 0;
  for (size_t i = m.cpus._Find_first(); i < m.cpus.size(); i = m.cpus._Find_next(i)) last = i;
  for (size_t i = 0; i <= last; ++i) all.set(i);
  if (m.cpus.none() || m.cpus == all) return;
  m.warnings.push_back({"topology-cpus",
                        m.file + ": names CPUs " + to_list(m.cpus) +
                            " only; cores are counted among these, not as Slurm counts them",
                        "use lstopo --of xml on the machine itself", true});
}

LinkLayer layer_of_name(std::string_view name) {
  const auto starts = [&](std::initializer_list<std::string_view> words) {
    return std::any_of(words.begin(), words.end(),
                       [&](std::string_view w) { return name.starts_with(w); });
  };
  const auto has = [&](std::string_view word) { return name.find(word) != name.npos; };
  if (starts({"hfi1", "opa"})) return LinkLayer::omni_path;
  if (starts({"hsi", "hsn", "cxi"})) return LinkLayer::slingshot;
  if (starts({"roce", "iw", "rdmap", "efa", "bnxt_re"}) || has("_eth") || has("_bond") ||
      has("_an"))
    return LinkLayer::ethernet;
  if (starts({"ibp", "ibs", "ibo", "ibx"}) || has("_ib")) return LinkLayer::infiniband;
  return LinkLayer::unknown;
}

bool is_device_name(std::string_view name) {
  if (name.empty() || name.size() > 63 || name.front() == '.' || name.front() == '-') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
  });
}

std::optional<PciId> parse_pci(std::string_view text) {
  PciId id;
  if (take_hex(text, 4, 8, id.domain) && take_char(text, ':') && take_hex(text, 2, 2, id.bus) &&
      take_char(text, ':') && take_hex(text, 2, 2, id.device) && take_char(text, '.') &&
      take_hex(text, 1, 1, id.function) && text.empty() && id.device < 32 && id.function < 8)
    return id;
  return std::nullopt;
}

}  // namespace trainlaunch
