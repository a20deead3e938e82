#include <algorithm>

#include "report.h"
#include "report_parts.h"

namespace trainlaunch {
namespace {

// Rows of cells in columns as wide as their widest cell; the last is not padded.
class Table {
 public:
  explicit Table(std::vector<std::string> head) { row(std::move(head)); }
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const {
    std::vector<size_t> width(rows_.front().size());
    for (const auto& r : rows_)
      for (size_t c = 0; c < r.size(); ++c) width[c] = std::max(width[c], r[c].size());
    std::string out;
    for (const auto& r : rows_) {
      std::string line;
      for (size_t c = 0; c < r.size(); ++c) {
        line += r[c];
        if (c + 1 < r.size()) line.append(width[c] - r[c].size() + 2, ' ');
      }
      line.erase(line.find_last_not_of(' ') + 1);
      out += line + '\n';
    }
    return out;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string or_dash(std::string s) { return s.empty() ? "-" : s; }
std::string node_name(int node) { return node < 0 ? "-" : std::to_string(node); }

std::string headline(const Machine& m) {
  return (m.file.empty() ? "this machine" : plain(m.file)) + ": " + machine_counts(m) + '\n';
}

std::string nic_table(const Machine& m, const std::vector<NicChoice>& choice) {
  if (m.nics.empty()) return "";
  Table t({"port", "PCI", "node", "network", "rate", "used"});
  for (size_t i = 0; i < m.nics.size(); ++i) {
    const Nic& n = m.nics[i];
    t.row({to_string(n), to_string(n.pci), node_name(n.place.numa), name_of(n.link_layer),
           or_dash(rate_name(n)), choice[i].used ? "yes" : "no: " + choice[i].why});
  }
  return '\n' + t.text();
}

}  // namespace

std::string rank_line(const Answer& a, size_t i, const std::string& node) {
  const RankPlan& r = a.plan.ranks[i];
  std::string out =
      "gpu-bind: " + (node.empty() ? "" : node + ' ') + "rank " + std::to_string(i) + " (local): ";
  out += r.gpus.empty() ? "no GPU of ours" : gpu_names(a.machine, r.gpus);
  out += r.keep_cpus ? ", CPUs left alone" : ", CPUs " + to_list(r.cpus);
  if (r.mem) out += ", memory node " + std::to_string(*r.mem);
  if (!r.nics.empty())
    out += ", NIC " + nic_names(a.machine, r.nics) +
           (r.gpu_nic ? std::string(" (") + name_of(*r.gpu_nic) + ')' : "");
  return out;
}

std::string machine_text(const Machine& m, const std::vector<NicChoice>& nics) {
  std::string out = headline(m);
  if (!m.numa.empty()) {
    Table numa({"node", "CPUs", "GPUs", "ports"});
    for (const NumaNode& n : m.numa) {
      std::vector<int> gpus, ports;
      for (const Gpu& g : m.gpus)
        if (g.place.numa == n.node) gpus.push_back(g.index);
      for (size_t i = 0; i < m.nics.size(); ++i)
        if (m.nics[i].place.numa == n.node) ports.push_back(static_cast<int>(i));
      numa.row({std::to_string(n.node), to_list(n.cpus), or_dash(to_list(gpus)),
                or_dash(nic_names(m, ports))});
    }
    out += '\n' + numa.text();
  }
  if (!m.gpus.empty()) {
    std::vector<std::string> head{"GPU", "PCI", "vendor", "node", "CPUs"};
    for (const Nic& n : m.nics) head.push_back(to_string(n));
    Table gpus(head);
    for (const Gpu& g : m.gpus) {
      std::vector<std::string> row{std::to_string(g.index), to_string(g), name_of(g.vendor),
                                   node_name(g.place.numa), to_list(g.place.cpus)};
      for (const Near& n : m.near[static_cast<size_t>(g.index)]) row.emplace_back(name_of(n.level));
      gpus.row(std::move(row));
    }
    out += '\n' + gpus.text();
  }
  return out + nic_table(m, nics);
}

std::string plan_text(const Answer& a) {
  std::string out = headline(a.machine);
  Table ranks({"rank", "GPU", "CPUs", "memory", "port", "GPU-port"});
  for (size_t i = 0; i < a.plan.ranks.size(); ++i) {
    const RankPlan& r = a.plan.ranks[i];
    std::string gpus = gpu_names(a.machine, r.gpus);
    ranks.row({std::to_string(i), or_dash(gpus), r.keep_cpus ? "left alone" : to_list(r.cpus),
               r.mem ? std::to_string(*r.mem) : "-", or_dash(nic_names(a.machine, r.nics)),
               r.gpu_nic ? name_of(*r.gpu_nic) : "-"});
  }
  out += '\n' + ranks.text() + nic_table(a.machine, a.plan.nics);

  out += "\nenvironment\n";
  for (const Variable& v : a.env.common)
    out += "  " + v.name + '=' + v.value + "  (" + source_of(v) + ")\n";
  for (size_t i = 0; i < a.env.ranks.size(); ++i)
    for (const Variable& v : a.env.ranks[i])
      out += "  rank " + std::to_string(i) + ": " + v.name + '=' + v.value + "  (" + source_of(v) +
             ")\n";
  for (const std::string& name : a.env.unset)
    out += "  unset: " + name + ", which Slurm sets too: ROCm would apply both masks\n";
  for (const std::string& note : a.env.notes) out += "  not set: " + note + '\n';

  out += "\nwhy\n";
  for (const std::string& w : a.plan.why) out += "  " + w + '\n';
  for (size_t i = 0; i < a.plan.ranks.size(); ++i)
    for (const std::string& w : a.plan.ranks[i].why)
      out += "  rank " + std::to_string(i) + ": " + w + '\n';

  if (!a.plan.warnings.empty()) out += "\nwarnings\n";
  for (const Warning& w : a.plan.warnings)
    out += "  " + w.code + ": " + w.message + "\n    mend it with: " + w.fix + '\n';
  return out;
}

}  // namespace trainlaunch
