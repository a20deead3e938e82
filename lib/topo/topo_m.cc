#include "topo/topo_m.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "base/text.h"
#include "topo/assemble.h"
#include "topo/lines.h"

namespace trainlaunch {
namespace {

// A bus number is what tells made-up devices apart.
constexpr size_t max_devices = 256;
constexpr uint32_t domain_of_gpus = 0xfffffff0, domain_of_nics = 0xfffffff1;
constexpr int max_node = 1 << 16;
// 256 GPUs and as many NICs take a tenth of this.
constexpr size_t max_text = 1 << 20;

PciId made_up(uint32_t domain, size_t i) { return {domain, static_cast<uint8_t>(i), 0, 0}; }

// The number in "GPU12"; nothing when the word is none of these.
std::optional<int> numbered(std::string_view word, std::string_view prefix) {
  if (!word.starts_with(prefix) || word.size() == prefix.size()) return std::nullopt;
  word.remove_prefix(prefix.size());
  int number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size() || number < 0) return std::nullopt;
  return number;
}

std::optional<Level> level_of(std::string_view word) {
  static const std::map<std::string_view, Level> levels = {
      {"PIX", Level::pix},   {"PXB", Level::pxb}, {"PHB", Level::phb},
      {"NODE", Level::node}, {"SYS", Level::sys}, {"SOC", Level::sys}};
  const auto found = levels.find(word);
  if (found == levels.end()) return std::nullopt;
  return found->second;
}

// The columns after the matrix, in any order.
enum class Tail { cpus, numa, gpu_numa };
struct TailColumn {
  Tail kind;
  size_t start;  // in the heading, tabs expanded
};

std::string expand_tabs(std::string_view line) {
  std::string out;
  for (char c : line)
    if (c == '\t')
      out.append(8 - out.size() % 8, ' ');
    else
      out += c;
  return out;
}

struct Heading {
  std::vector<std::string> devices;
  std::vector<TailColumn> tail;
};

std::optional<Heading> parse_heading(std::string_view raw) {
  const std::string line = expand_tabs(raw);
  Heading h;
  size_t end = line.size();
  for (const auto& [words, kind] : {std::pair{"CPU Affinity", Tail::cpus},
                                    {"NUMA Affinity", Tail::numa},
                                    {"GPU NUMA ID", Tail::gpu_numa}}) {
    const size_t at = line.find(words);
    if (at == line.npos) continue;
    h.tail.push_back({kind, at});
    end = std::min(end, at);
  }
  std::sort(h.tail.begin(), h.tail.end(),
            [](const TailColumn& a, const TailColumn& b) { return a.start < b.start; });
  for (std::string_view word : words(std::string_view(line).substr(0, end)))
    h.devices.emplace_back(word);
  if (h.devices.empty() || !numbered(h.devices.front(), "GPU")) return std::nullopt;
  // A row of the matrix starts as its heading does.
  if (h.devices.size() > 1 && (h.devices[1] == "X" || level_of(h.devices[1]))) return std::nullopt;
  return h;
}

struct Row {
  int line = 0;
  std::vector<std::string> cells;
  CpuSet cpus;
  bool cpus_said = false;  // there is a column for them
  std::vector<int> nodes;  // of the column NUMA Affinity
};

class Matrix {
 public:
  Matrix(const std::string& text, const std::string& name)
      : lines_(useful_lines(text)), name_(name) {}

  Result<Machine> read() {
    size_t at = 0;
    while (at < lines_.size() && !parse_heading(lines_[at].text)) ++at;
    if (at == lines_.size()) return fail_at(name_, 1, "no line GPU0 GPU1 ... that heads a matrix");
    heading_ = *parse_heading(lines_[at].text);
    const int line = lines_[at].number;
    if (auto s = read_columns(line); !s) return forward(s);
    for (++at; at < lines_.size(); ++at)
      if (auto s = read_line(lines_[at]); !s) return forward(s);
    for (size_t column : gpus_)
      if (!rows_.contains(heading_.devices[column]))
        return fail_at(name_, line, heading_.devices[column] + " has no row: is the text cut off?");
    m_.kind = "topo-m";
    m_.file = name_;
    m_.made_up_ids = true;
    read_places();
    if (auto s = add_devices(); !s) return forward(s);
    warn_of_missing_cpus(m_);
    return std::move(m_);
  }

 private:
  Status read_columns(int line) {
    std::set<std::string> seen;
    for (size_t i = 0; i < heading_.devices.size(); ++i) {
      const std::string& device = heading_.devices[i];
      if (!seen.insert(device).second)
        return fail_at(name_, line, shown(device) + " heads two columns");
      if (!is_device_name(device))
        return fail_at(name_, line, shown(device) + " is no GPU and no NIC");
      (numbered(device, "GPU") ? gpus_ : nics_).push_back(i);
    }
    if (gpus_.size() > max_devices || nics_.size() > max_devices)
      return fail_at(name_, line, "more than " + std::to_string(max_devices) + " GPUs or NICs");
    return {};
  }

  Status read_line(const Line& line) {
    const auto all = words(line.text);
    const std::string first(all.front());
    if (numbered(first, "GPU")) return read_row(line, all);
    // The legend of NICs: "NIC0: mlx5_0".
    if (first.ends_with(':') && all.size() == 2) {
      const std::string nic = first.substr(0, first.size() - 1);
      if (!numbered(nic, "NIC")) return {};
      if (!is_device_name(all[1]))
        return fail_at(name_, line.number, shown(all[1]) + " is no name of a NIC");
      if (!legend_.emplace(nic, all[1]).second)
        return fail_at(name_, line.number, nic + " has a name already");
    }
    return {};
  }

  Status read_row(const Line& line, const std::vector<std::string_view>& all) {
    const std::string device(all.front());
    const auto column = std::find(heading_.devices.begin(), heading_.devices.end(), device);
    if (column == heading_.devices.end())
      return fail_at(name_, line.number, shown(device) + " has a row and no column");
    const size_t width = heading_.devices.size();
    if (all.size() < width + 1)
      return fail_at(name_, line.number,
                     device + " has " + std::to_string(all.size() - 1) + " of " +
                         std::to_string(width) + " columns: is the text cut off?");
    Row row;
    row.line = line.number;
    for (size_t i = 0; i < width; ++i) {
      const std::string_view cell = all[i + 1];
      if (!is_cell(cell, i, i == static_cast<size_t>(column - heading_.devices.begin())))
        return fail_at(name_, line.number,
                       shown(cell) + " between " + device + " and " + heading_.devices[i] +
                           ": not a word of nvidia-smi topo");
      row.cells.emplace_back(cell);
    }
    if (auto s = read_tail(line, all, row); !s) return s;
    if (!rows_.emplace(device, std::move(row)).second)
      return fail_at(name_, line.number, device + " has two rows");
    return {};
  }

  bool is_cell(std::string_view cell, size_t column, bool self) const {
    if (self || cell == "X") return self && cell == "X";
    if (level_of(cell)) return true;
    // Between GPUs there may be links of many kinds, which say nothing of places.
    return numbered(heading_.devices[column], "GPU") && cell.size() <= 8 &&
           std::all_of(cell.begin(), cell.end(), [](char c) {
             return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '/' || c == '#';
           });
  }

  // What of a row stands below each column of the tail. Cells may be empty, and where the tabs are
  // kept two of them may stand for one, so the position decides unless the count is right.
  std::vector<std::string> tail_cells(const Line& line,
                                      const std::vector<std::string_view>& all) const {
    const size_t width = heading_.devices.size() + 1, columns = heading_.tail.size();
    std::vector<std::string> cells(columns);
    if (all.size() == width + columns) {
      for (size_t i = 0; i < columns; ++i) cells[i] = all[width + i];
      return cells;
    }
    // One tab for each cell, an empty one too.
    std::vector<std::string_view> tabbed;
    for (std::string_view rest = line.text;;) {
      const size_t tab = rest.find('\t');
      tabbed.push_back(trim(rest.substr(0, tab)));
      if (tab == rest.npos) break;
      rest.remove_prefix(tab + 1);
    }
    if (tabbed.size() >= width && tabbed.size() <= width + columns) {
      for (size_t i = width; i < tabbed.size(); ++i) cells[i - width] = tabbed[i];
      return cells;
    }
    const std::string wide = expand_tabs(line.text);
    size_t from = 0;
    const auto placed = words(wide);
    for (size_t i = 0; i < placed.size(); ++i) {
      const size_t at = wide.find(placed[i], from);
      from = at + placed[i].size();
      if (i < width) continue;
      size_t column = 0;
      while (column + 1 < columns && heading_.tail[column + 1].start <= at) ++column;
      if (columns) cells[column] = placed[i];
    }
    return cells;
  }

  Status read_tail(const Line& line, const std::vector<std::string_view>& all, Row& row) const {
    if (all.size() > heading_.devices.size() + 1 + heading_.tail.size())
      return fail_at(name_, line.number, "more cells than columns");
    const auto cells = tail_cells(line, all);
    for (size_t i = 0; i < cells.size(); ++i) {
      const Tail kind = heading_.tail[i].kind;
      if (kind == Tail::cpus) row.cpus_said = cells[i] != "N/A";
      if (cells[i].empty() || cells[i] == "N/A" || kind == Tail::gpu_numa) continue;
      if (kind == Tail::cpus) {
        const auto cpus = parse_cpus(cells[i]);
        if (!cpus) return fail_at(name_, line.number, "CPU affinity " + cpus.error().what);
        row.cpus = *cpus;
      } else {
        auto nodes = parse_list(cells[i], max_node);
        if (!nodes) return fail_at(name_, line.number, "NUMA affinity " + nodes.error().what);
        row.nodes = std::move(*nodes);
      }
    }
    return {};
  }

  const Row& row(size_t gpu) const { return rows_.at(heading_.devices[gpus_[gpu]]); }

  // Where rows name several memory nodes each, all but the first may be memory without CPUs (of
  // Grace's GPUs). The kernel numbers such nodes after all those with CPUs, so the first is the one
  // with the CPUs if no other is numbered below the first of another row. With one row, or one set
  // of CPUs, nothing tells these from nodes with CPUs.
  bool first_node_has_cpus() const {
    int last_first = -1, first_other = max_node;
    bool differ = false;
    for (size_t g = 0; g < gpus_.size(); ++g) {
      const auto& nodes = row(g).nodes;
      if (nodes.empty()) continue;
      differ = differ || row(g).cpus != row(0).cpus;
      last_first = std::max(last_first, nodes[0]);
      if (nodes.size() > 1) first_other = std::min(first_other, nodes[1]);
    }
    return differ && last_first < first_other;
  }

  void read_places() {
    const bool first = first_node_has_cpus();
    std::map<int, CpuSet> nodes;
    for (size_t g = 0; g < gpus_.size(); ++g) {
      const Row& r = row(g);
      m_.cpus |= r.cpus;
      Place place{r.cpus, -1};
      if (r.nodes.size() == 1 || (r.nodes.size() > 1 && first)) place.numa = r.nodes[0];
      if (place.numa >= 0) nodes[place.numa] |= r.cpus;
      places_.push_back(place);
    }
    CpuSet taken;
    bool overlap = false;
    for (const auto& [node, cpus] : nodes) {
      overlap = overlap || (cpus & taken).any();
      taken |= cpus;
      if (cpus.any()) m_.numa.push_back({node, cpus});
    }
    if (overlap) {
      m_.numa.clear();
      for (Place& p : places_) p.numa = -1;
      warn("several memory nodes have the same CPUs, which cannot be: memory nodes are unknown");
    }
    std::string cut;
    for (size_t g = 0; g < gpus_.size(); ++g)
      if (!row(g).cpus_said)
        places_[g].cpus = m_.cpus;
      else if (places_[g].cpus.none())
        cut += (cut.empty() ? "" : ", ") + heading_.devices[gpus_[g]];
    if (m_.cpus.none())
      warn("names no CPUs");
    else if (!cut.empty())
      warn("no CPUs near " + cut + ": printed in a job that had others only");
    m_.allowed = m_.cpus;
    std::vector<CpuSet> groups;
    for (const Place& p : places_) groups.push_back(p.cpus);
    guess_cores(m_, groups);
  }

  void warn(const std::string& what) {
    m_.warnings.push_back({"topology-affinity", name_ + ": " + what,
                           "use lstopo --of xml on the machine itself, outside of jobs"});
  }

  Nic nic(size_t n) const {
    Nic nic;
    nic.name = heading_.devices[nics_[n]];
    if (const auto named = legend_.find(nic.name); named != legend_.end())
      nic.name = named->second;
    else
      nic.named = !numbered(nic.name, "NIC");
    nic.pci = made_up(domain_of_nics, n);
    nic.link_layer = layer_of_name(nic.name);
    nic.verbs =
        nic.named && nic.link_layer != LinkLayer::slingshot && !nic.name.starts_with("rdmap");
    nic.place = {m_.cpus, -1};
    std::set<int> nodes;
    for (size_t g = 0; g < gpus_.size(); ++g)
      if (level_of(row(g).cells[nics_[n]]) != Level::sys) nodes.insert(places_[g].numa);
    if (nodes.size() == 1)
      for (const NumaNode& node : m_.numa)
        if (node.node == *nodes.begin()) nic.place = {node.cpus, node.node};
    return nic;
  }

  Status add_devices() {
    std::set<std::string> names;
    std::vector<FoundGpu> gpus;
    std::vector<FoundNic> nics;
    for (size_t g = 0; g < gpus_.size(); ++g) {
      Gpu gpu;
      gpu.pci = made_up(domain_of_gpus, g);
      gpu.place = places_[g];
      gpus.push_back({gpu, {}});
    }
    for (size_t n = 0; n < nics_.size(); ++n) {
      nics.push_back({nic(n), {}});
      if (!names.insert(nics.back().nic.name).second)
        return fail_at(name_, 1, "two NICs are named " + nics.back().nic.name);
    }
    if (auto s = take_devices(m_, std::move(gpus), std::move(nics)); !s) return s;
    for (size_t g = 0; g < gpus_.size(); ++g)
      for (size_t n = 0; n < nics_.size(); ++n) {
        const Level level = *level_of(row(g).cells[nics_[n]]);
        m_.near[g][n] = {level, level == Level::sys ? 1 : 0};
      }
    return {};
  }

  std::vector<Line> lines_;
  const std::string& name_;
  Heading heading_;
  std::vector<size_t> gpus_, nics_;  // columns
  std::map<std::string, Row> rows_;
  std::map<std::string, std::string> legend_;
  std::vector<Place> places_;  // of each GPU
  Machine m_;
};

// "GPU[3]		: (Topology) Numa Node: 1": the GPU and its node; -1 where that is unknown.
std::optional<std::pair<int, int>> numa_line(std::string_view line) {
  const auto all = words(line);
  const auto is = [&](size_t i, std::string_view word) { return all[i] == word; };
  if (all.size() != 6 || !all[0].starts_with("GPU[") || !all[0].ends_with("]") || !is(1, ":") ||
      !is(2, "(Topology)") || !is(3, "Numa") || !is(4, "Node:"))
    return std::nullopt;
  const auto gpu = numbered(all[0].substr(0, all[0].size() - 1), "GPU[");
  if (!gpu) return std::nullopt;
  const auto node = numbered(all[5], "");
  if (!node && all[5] != "-1" && all[5] != "N/A") return std::nullopt;
  return std::pair{*gpu, node.value_or(-1)};
}

// "NUMA node0 CPU(s):     0-15,64-79", as lscpu prints it.
std::optional<std::pair<int, std::string_view>> lscpu_line(std::string_view line) {
  const auto all = words(line);
  if (all.size() != 4 || all[0] != "NUMA" || all[2] != "CPU(s):") return std::nullopt;
  const auto node = numbered(all[1], "node");
  if (!node) return std::nullopt;
  return std::pair{*node, all[3]};
}

}  // namespace

bool is_topo_m(std::string_view text) {
  const auto lines = useful_lines(text.substr(0, 65536));
  return std::any_of(lines.begin(), lines.end(), [](const Line& line) {
    return line.text.find("GPU") != std::string::npos && parse_heading(line.text).has_value();
  });
}

bool is_showtoponuma(std::string_view text) {
  const auto lines = useful_lines(text.substr(0, 65536));
  return std::any_of(lines.begin(), lines.end(), [](const Line& line) {
    return line.text.find("(Topology) Numa") != std::string::npos;
  });
}

Result<Machine> machine_from_topo_m(const std::string& text, const std::string& name) {
  if (text.size() > max_text) return fail_at(name, 1, "too long for what nvidia-smi prints");
  return Matrix(text, name).read();
}

Result<Machine> machine_from_showtoponuma(const std::string& text, const std::string& name) {
  if (text.size() > max_text) return fail_at(name, 1, "too long for what rocm-smi prints");
  Machine m;
  m.kind = "showtoponuma";
  m.file = name;
  m.made_up_ids = true;
  std::map<int, int> node_of;
  for (const Line& line : useful_lines(text)) {
    if (const auto gpu = numa_line(line.text)) {
      if (gpu->second >= max_node || !node_of.emplace(*gpu).second)
        return fail_at(name, line.number,
                       "GPU[" + std::to_string(gpu->first) +
                           "]: a second time, or in no memory node there is");
    } else if (const auto node = lscpu_line(line.text)) {
      const auto cpus = parse_cpus(node->second);
      if (!cpus) return fail_at(name, line.number, cpus.error().what);
      if (node->first >= max_node || (*cpus & m.cpus).any())
        return fail_at(name, line.number, "CPUs that another memory node has, or no such node");
      if (cpus->any()) m.numa.push_back({node->first, *cpus});
      m.cpus |= *cpus;
    } else if (line.text.find("(Topology) Numa Node") != std::string::npos) {
      return fail_at(name, line.number, shown(trim(line.text)) + ": cut off or damaged");
    }
  }
  if (node_of.empty()) return fail_at(name, 1, "no line GPU[0] : (Topology) Numa Node: 0");
  if (node_of.size() > max_devices || node_of.rbegin()->first >= static_cast<int>(max_devices))
    return fail_at(name, 1, "more than " + std::to_string(max_devices) + " GPUs");
  m.allowed = m.cpus;
  std::vector<CpuSet> groups;
  for (const NumaNode& n : m.numa) groups.push_back(n.cpus);
  guess_cores(m, groups);
  std::vector<FoundGpu> gpus;
  for (const auto& [number, node] : node_of) {
    Gpu gpu;
    gpu.pci = made_up(domain_of_gpus, static_cast<size_t>(number));
    gpu.vendor = Vendor::amd;
    gpu.place = {m.cpus, node};
    for (const NumaNode& n : m.numa)
      if (n.node == node) gpu.place.cpus = n.cpus;
    gpus.push_back({gpu, {}});
  }
  if (auto s = take_devices(m, std::move(gpus), {}); !s) return fail_at(name, 1, s.error().what);
  if (m.cpus.none())
    m.warnings.push_back({"topology-affinity", name + ": names no CPUs",
                          "append what lscpu prints, or use lstopo --of xml"});
  warn_of_missing_cpus(m);
  return m;
}

}  // namespace trainlaunch
