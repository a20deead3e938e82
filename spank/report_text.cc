#include <algorithm>
#include <map>

#include "links.h"
#include "report.h"
#include "report_parts.h"
#include "table.h"

namespace trainlaunch {
namespace {

std::string or_dash(std::string s) { return s.empty() ? "-" : s; }
std::string node_name(int node) { return node < 0 ? "-" : std::to_string(node); }

Cell level_cell(Level level) {
  return {name_of(level), level <= Level::pxb  ? Look::good
                          : level < Level::sys ? Look::fair
                                               : Look::bad};
}

std::string title(const char* words, const TextStyle& style) {
  return '\n' + painted(words, Look::heading, style) + '\n';
}

std::string headline(const Machine& m, const TextStyle& style) {
  const std::string name = m.file.empty() ? "this machine" : plain(m.file);
  const std::string counts = machine_counts(m);
  const bool one_line = name.size() + 2 + counts.size() <= style.width;
  return painted(name + ':', Look::heading, style) + (one_line ? " " : "\n  ") + counts + '\n';
}

std::string node_table(const Machine& m, const TextStyle& style) {
  if (m.numa.empty()) return "";
  Table t(style, {"node", "GPUs", "ports", "CPUs"});
  for (const NumaNode& n : m.numa) {
    std::vector<int> gpus, ports;
    for (const Gpu& g : m.gpus)
      if (g.place.numa == n.node) gpus.push_back(g.index);
    for (size_t i = 0; i < m.nics.size(); ++i)
      if (m.nics[i].place.numa == n.node) ports.push_back(static_cast<int>(i));
    t.row(
        {std::to_string(n.node), or_dash(to_list(gpus)), or_dash(to_list(ports)), to_list(n.cpus)});
  }
  return '\n' + t.text();
}

std::string gpu_table(const Machine& m, const TextStyle& style) {
  if (m.gpus.empty()) return "";
  Table t(style, {"GPU", "PCI", "vendor", "node", "CPUs"});
  for (const Gpu& g : m.gpus)
    t.row({std::to_string(g.index), or_dash(pci_name(m, g)), name_of(g.vendor),
           node_name(g.place.numa), to_list(g.place.cpus)});
  return '\n' + t.text();
}

// Ports by name where all of them fit, else by their number in the table of ports; what is still
// too wide goes on below.
std::string nearness(const Machine& m, const TextStyle& style) {
  if (m.gpus.empty() || m.nics.empty()) return "";
  std::vector<std::string> names, numbers;
  size_t name_width = 3, widest = 3;
  for (size_t i = 0; i < m.nics.size(); ++i) {
    names.push_back(plain(to_string(m.nics[i])));
    numbers.push_back('#' + std::to_string(i));
    name_width += 2 + std::max<size_t>(4, names.back().size());
    widest = std::max(widest, numbers.back().size());
  }
  for (const auto& row : m.near)
    for (const Near& n : row) widest = std::max(widest, std::string_view(name_of(n.level)).size());
  const bool by_name = name_width <= style.width;
  const size_t gap = by_name ? 2 : 1;
  const size_t at_once =
      by_name ? names.size()
              : std::max<size_t>(1, (std::max<size_t>(style.width, 4) - 4) / (widest + gap));
  std::string out;
  for (size_t first = 0; first < names.size(); first += at_once) {
    const size_t last = std::min(names.size(), first + at_once);
    std::vector<std::string> head{"GPU"};
    for (size_t n = first; n < last; ++n) head.push_back(by_name ? names[n] : numbers[n]);
    Table t(style, head, gap);
    for (const Gpu& g : m.gpus) {
      std::vector<Cell> row{std::to_string(g.index)};
      for (size_t n = first; n < last; ++n)
        row.push_back(level_cell(m.near[static_cast<size_t>(g.index)][n].level));
      t.row(std::move(row));
    }
    out += '\n' + t.text();
  }
  return out;
}

std::string port_table(const Machine& m, const std::vector<NicChoice>& choice,
                       const TextStyle& style) {
  if (m.nics.empty()) return "";
  Table t(style, {"#", "port", "PCI", "node", "network", "rate", "used"});
  for (size_t i = 0; i < m.nics.size(); ++i) {
    const Nic& n = m.nics[i];
    const bool used = choice[i].used;
    const Look look = used ? Look::plain : Look::dim;
    t.row({{std::to_string(i), look},
           {to_string(n), look},
           {or_dash(pci_name(m, n)), look},
           {node_name(n.place.numa), look},
           {name_of(n.link_layer), look},
           {or_dash(rate_name(n)), look},
           {used ? "yes" : "no: " + choice[i].why, look}});
  }
  return '\n' + t.text();
}

// A line for each pair of a rank's GPUs and ports; what they share stands on the first one.
void rank_rows(Table& t, const Answer& a, size_t rank) {
  const RankPlan& r = a.plan.ranks[rank];
  const auto links = links_of(a.machine, r);
  std::vector<Cell> shared{r.mem ? std::to_string(*r.mem) : "-",
                           r.keep_cpus ? "left alone" : to_list(r.cpus)};
  bool first = true;
  const auto row = [&](int gpu, int nic, Cell level) {
    const Gpu* g = gpu < 0 ? nullptr : &a.machine.gpus[static_cast<size_t>(gpu)];
    const std::string none = first ? "-" : "";
    t.row({first ? std::to_string(rank) : "", g ? std::to_string(g->index) : none,
           g ? or_dash(pci_name(a.machine, *g)) : none,
           nic < 0 ? "-" : to_string(a.machine.nics[static_cast<size_t>(nic)]), std::move(level),
           first ? shared[0] : "", first ? shared[1] : ""});
    first = false;
  };
  for (const int g : r.gpus) {
    bool any = false;
    for (const Link& l : links)
      if (l.gpu == g) {
        row(any ? -1 : g, l.nic, level_cell(l.level));
        any = true;
      }
    if (!any) row(g, -1, "-");
  }
  if (r.gpus.empty())
    for (const int n : r.nics) row(-1, n, first ? "-" : "");
  if (first) row(-1, -1, "-");
}

std::string rank_table(const Answer& a, const TextStyle& style) {
  Table t(style, {"rank", "GPU", "PCI", "port", "near", "memory", "CPUs"});
  for (size_t i = 0; i < a.plan.ranks.size(); ++i) rank_rows(t, a, i);
  return '\n' + t.text();
}

// A variable stands on one line whatever its length, so that it can be copied; where it comes from
// stands beside it or below.
std::string variable(const std::string& before, const Variable& v, bool tell,
                     const TextStyle& style) {
  const std::string line = before + plain(v.name + '=' + v.value);
  if (!tell) return line + '\n';
  const std::string why = '(' + source_of(v) + ')';
  if (line.size() + 2 + why.size() <= style.width)
    return line + "  " + painted(why, Look::dim, style) + '\n';
  std::string below = paragraph(why, before.size() + 4, before.size() + 4, style);
  below.pop_back();
  return line + '\n' + painted(below, Look::dim, style) + '\n';
}

std::string environment_text(const Environment& env, const TextStyle& style) {
  std::string out;
  for (const Variable& v : env.common) out += variable("  ", v, true, style);
  std::map<std::string, std::string> told;  // of each variable, what was last said about it
  for (size_t i = 0; i < env.ranks.size(); ++i)
    for (const Variable& v : env.ranks[i]) {
      std::string& last = told[v.name];
      out += variable("  rank " + std::to_string(i) + ": ", v, last != source_of(v), style);
      last = source_of(v);
    }
  for (const std::string& name : env.unset)
    out += paragraph("unset: " + name + ", which Slurm sets too: ROCm would apply both masks", 2, 4,
                     style);
  for (const std::string& note : env.notes) out += paragraph("not set: " + note, 2, 4, style);
  return out.empty() ? "" : title("environment", style) + out;
}

std::string reasons(const Plan& plan, const TextStyle& style) {
  std::string out;
  for (const std::string& w : plan.why) out += paragraph(w, 2, 4, style);
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    if (plan.ranks[i].why.empty()) continue;
    out += "  " + painted("rank " + std::to_string(i), Look::heading, style) + '\n';
    for (const std::string& w : plan.ranks[i].why) out += paragraph(w, 4, 6, style);
  }
  return out.empty() ? "" : title("why", style) + out;
}

std::string warnings_text(const std::vector<Warning>& warnings, const TextStyle& style) {
  std::string out;
  for (const Warning& w : warnings) {
    std::string text = paragraph(w.code + ": " + w.message, 2, 4, style);
    // The code is the first word, and is not broken.
    text.replace(2, w.code.size(), painted(w.code, Look::warning, style));
    out += text;
    if (!w.fix.empty()) out += paragraph("mend it with: " + w.fix, 4, 6, style);
  }
  return out.empty() ? "" : title("warnings", style) + out;
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

std::string machine_text(const Machine& m, const std::vector<NicChoice>& nics,
                         const TextStyle& style) {
  return headline(m, style) + node_table(m, style) + gpu_table(m, style) + nearness(m, style) +
         port_table(m, nics, style);
}

std::string plan_text(const Answer& a, const TextStyle& style) {
  return headline(a.machine, style) + rank_table(a, style) +
         port_table(a.machine, a.plan.nics, style) + environment_text(a.env, style) +
         reasons(a.plan, style) + warnings_text(a.plan.warnings, style);
}

}  // namespace trainlaunch
