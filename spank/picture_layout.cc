#include "picture_layout.h"

#include <algorithm>
#include <climits>
#include <numeric>
#include <set>

namespace trainlaunch {
namespace {

using svg::Box;

constexpr double page = 900, margin = picture_margin, inset = panel_inset;
constexpr double ranks_width = 206, ranks_gap = 42;
constexpr double gpu_width = 168, port_width = 196;
constexpr double pitch = 44, slot_height = 36;  // of a device with the space below it; without
constexpr double panel_gap = 10, outer_inset = 9, enclosure_inset = 6, enclosure_side = 6.5,
                 enclosure_gap = 7;
constexpr double head_height = 28, outer_head = 24;
constexpr double core_height = 17, core_gap = 4, core_widest = 52, core_narrowest = 7;
// More cores than this in one place are drawn as narrow as can still be seen.
constexpr size_t many_cores = 512;
constexpr double many_narrowest = 2.5;
constexpr size_t bundle_from = 4;  // so many unused ports of one reason are drawn as one

// Devices that stand together: below one enclosure, or just in one panel.
struct Block {
  std::optional<Level> enclosure;
  std::vector<int> gpus;
  std::vector<std::vector<int>> used, unused;  // ports, by what is drawn as one
  std::vector<Block> inner;
  int first = INT_MAX;  // its first GPU
};

struct Address {
  int package = -1, node = -1;
  auto operator<=>(const Address&) const = default;
};

// In the order of their numbers; what is unknown comes last.
struct ByNumber {
  static int key(int n) { return n < 0 ? INT_MAX : n; }
  bool operator()(const Address& a, const Address& b) const {
    return std::make_pair(key(a.package), key(a.node)) <
           std::make_pair(key(b.package), key(b.node));
  }
};

struct Region {
  std::vector<int> cores, gpus, nics, ranks;
};

class Layouter {
 public:
  Layouter(const Machine& m, const std::vector<NicChoice>& nics, const std::vector<RankPlan>& ranks)
      : m_(m), choice_(nics), ranks_(ranks) {
    machine_x_ = ranks.empty() ? margin : margin + ranks_width + ranks_gap;
    machine_w_ = page - margin - margin - ranks_width - ranks_gap;
    out_.width = machine_x_ + machine_w_ + margin;
    gpu_x_ = machine_x_ + 34;
    port_x_ = machine_x_ + machine_w_ - 34 - port_width;
    out_.ranks.resize(ranks.size());
    out_.at_panel.resize(ranks.size());
    for (const RankPlan& r : ranks) out_.links.push_back(links_of(m, r));
  }

  Layout run(double top) {
    find_owners();
    find_regions();
    if (regions_.empty()) regions_[{}];
    find_homes();
    y_ = top;
    for (auto at = regions_.begin(); at != regions_.end();) {
      const int package = at->first.package;
      auto last = at;
      while (last != regions_.end() && last->first.package == package) ++last;
      const bool outer = package >= 0 && std::distance(at, last) > 1;
      place_package(at, last, outer);
      at = last;
    }
    stretch_ranks();
    out_.height = y_;
    return std::move(out_);
  }

 private:
  using Regions = std::map<Address, Region, ByNumber>;

  const Gpu& gpu(int g) const { return m_.gpus[static_cast<size_t>(g)]; }
  const Nic& nic(int n) const { return m_.nics[static_cast<size_t>(n)]; }
  const Core& core(int c) const { return m_.cores[static_cast<size_t>(c)]; }
  const RankPlan& rank(int r) const { return ranks_[static_cast<size_t>(r)]; }
  bool used(int n) const { return choice_[static_cast<size_t>(n)].used; }
  Level level(int g, int n) const {
    return m_.near[static_cast<size_t>(g)][static_cast<size_t>(n)].level;
  }

  // ---- what belongs where

  void find_owners() {
    owners_.resize(m_.cores.size());
    for (size_t c = 0; c < m_.cores.size(); ++c)
      for (size_t r = 0; r < ranks_.size(); ++r) {
        if (ranks_[r].keep_cpus) continue;
        const auto& cpus = m_.cores[c].cpus;
        if (std::any_of(cpus.begin(), cpus.end(),
                        [&](int cpu) { return ranks_[r].cpus.test(static_cast<size_t>(cpu)); }))
          owners_[c].push_back(static_cast<int>(r));
      }
  }

  // The package of all cores among `cpus`; -1 when they are of several.
  int package_of(const CpuSet& cpus) const {
    int package = -1;
    for (const Core& c : m_.cores) {
      if (!cpus.test(static_cast<size_t>(c.cpus.front()))) continue;
      if (package >= 0 && c.package != package) return -1;
      package = c.package;
    }
    return package;
  }

  Address place_of(const CpuSet& cpus, int node) const {
    if (const auto at = package_of_node_.find(node); at != package_of_node_.end())
      return {at->second, node};
    return {package_of(cpus), -1};
  }

  void find_regions() {
    for (const NumaNode& n : m_.numa) {
      const int package = package_of(n.cpus);
      package_of_node_[n.node] = package;
      regions_[{package, n.node}];
    }
    for (size_t c = 0; c < m_.cores.size(); ++c) {
      const auto node = package_of_node_.find(m_.cores[c].numa);
      const Address at = node == package_of_node_.end() ? Address{m_.cores[c].package, -1}
                                                        : Address{node->second, node->first};
      regions_[at].cores.push_back(static_cast<int>(c));
    }
    for (size_t g = 0; g < m_.gpus.size(); ++g)
      regions_[place_of(m_.gpus[g].place.cpus, m_.gpus[g].place.numa)].gpus.push_back(
          static_cast<int>(g));
    for (size_t n = 0; n < m_.nics.size(); ++n)
      regions_[place_of(m_.nics[n].place.cpus, m_.nics[n].place.numa)].nics.push_back(
          static_cast<int>(n));
  }

  // A rank stands beside its first GPU; without one, beside the place of its CPUs.
  void find_homes() {
    at_gpu_.resize(m_.gpus.size());
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const RankPlan& p = ranks_[r];
      const int number = static_cast<int>(r);
      if (!p.gpus.empty()) {
        at_gpu_[static_cast<size_t>(first_shown(p.gpus))].push_back(number);
        continue;
      }
      out_.at_panel[r] = true;
      Address at{-1, -1};
      if (!p.keep_cpus) at = place_of(p.cpus, p.mem.value_or(m_.numa_of(p.cpus)));
      auto home = regions_.find(at);
      if (home == regions_.end()) home = regions_.begin();
      home->second.ranks.push_back(number);
    }
  }

  int first_shown(const std::vector<int>& gpus) const {
    for (const auto& [place, region] : regions_)
      for (const int g : region.gpus)
        if (std::find(gpus.begin(), gpus.end(), g) != gpus.end()) return g;
    return gpus.front();
  }

  // ---- blocks

  // Devices joined, directly or through others, by levels up to `limit`: 2k is GPU k of `gpus`,
  // and the rest ports.
  struct Parts {
    std::vector<int> gpus, nics;
  };
  std::vector<Parts> joined(const std::vector<int>& gpus, const std::vector<int>& nics,
                            Level limit) const {
    std::vector<size_t> root(gpus.size() + nics.size());
    std::iota(root.begin(), root.end(), size_t{0});
    const auto find = [&](size_t i) {
      while (root[i] != i) i = root[i] = root[root[i]];
      return i;
    };
    for (size_t g = 0; g < gpus.size(); ++g)
      for (size_t n = 0; n < nics.size(); ++n)
        if (level(gpus[g], nics[n]) <= limit) {
          const size_t a = find(g), b = find(gpus.size() + n);
          root[std::max(a, b)] = std::min(a, b);
        }
    std::map<size_t, Parts> parts;
    for (size_t g = 0; g < gpus.size(); ++g) parts[find(g)].gpus.push_back(gpus[g]);
    for (size_t n = 0; n < nics.size(); ++n) parts[find(gpus.size() + n)].nics.push_back(nics[n]);
    std::vector<Parts> out;
    for (auto& [first, p] : parts) out.push_back(std::move(p));
    return out;
  }

  Block leaf(std::vector<int> gpus, const std::vector<int>& nics) const {
    Block b;
    b.gpus = std::move(gpus);
    if (!b.gpus.empty()) b.first = b.gpus.front();
    std::map<std::string, std::vector<int>> unused;
    for (const int n : nics) {
      if (used(n))
        b.used.push_back({n});
      else
        unused[choice_[static_cast<size_t>(n)].why].push_back(n);
    }
    for (auto& [why, list] : unused) {
      if (list.size() >= bundle_from)
        b.unused.push_back(list);
      else
        for (const int n : list) b.unused.push_back({n});
    }
    std::sort(b.unused.begin(), b.unused.end());
    sort_ports(b);
    return b;
  }

  // Ports in the order of the GPUs that use them, so that lines do not cross.
  void sort_ports(Block& b) const {
    std::map<int, size_t> row;
    for (size_t i = 0; i < b.gpus.size(); ++i) row[b.gpus[i]] = i;
    const auto key = [&](const std::vector<int>& port) {
      size_t sum = 0, count = 0;
      for (const auto& links : out_.links)
        for (const Link& l : links)
          if (l.nic == port.front() && row.contains(l.gpu)) {
            sum += row[l.gpu];
            ++count;
          }
      return count == 0 ? 1e9 : static_cast<double>(sum) / static_cast<double>(count);
    };
    std::stable_sort(b.used.begin(), b.used.end(),
                     [&](const auto& x, const auto& y) { return key(x) < key(y); });
  }

  // The enclosures below `outermost`, and what stands in none.
  std::vector<Block> blocks(const std::vector<int>& gpus, const std::vector<int>& nics,
                            Level outermost) const {
    std::vector<Block> out;
    Parts loose;
    for (const Parts& p : joined(gpus, nics, outermost)) {
      if (p.gpus.empty() || p.nics.empty()) {
        loose.gpus.insert(loose.gpus.end(), p.gpus.begin(), p.gpus.end());
        loose.nics.insert(loose.nics.end(), p.nics.begin(), p.nics.end());
        continue;
      }
      out.push_back(enclosed(p, outermost));
    }
    if (!loose.gpus.empty() || !loose.nics.empty()) {
      std::sort(loose.gpus.begin(), loose.gpus.end());
      std::sort(loose.nics.begin(), loose.nics.end());
      out.push_back(leaf(loose.gpus, loose.nics));
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const Block& a, const Block& b) { return a.first < b.first; });
    return out;
  }

  // What `at` joins; within it, what a nearer level joins already.
  Block enclosed(const Parts& p, Level at) const {
    Level farthest = Level::pix;
    for (const int g : p.gpus)
      for (const int n : p.nics) farthest = std::max(farthest, level(g, n));
    farthest = std::min(farthest, at);  // those that are joined through others only
    Block b;
    if (farthest == Level::pix)
      b = leaf(p.gpus, p.nics);
    else
      b.inner = blocks(p.gpus, p.nics, farthest == Level::phb ? Level::pxb : Level::pix);
    b.first = p.gpus.front();
    b.enclosure = farthest;
    return b;
  }

  // ---- places

  size_t rows_of(int g) const {
    return std::max<size_t>(1, at_gpu_[static_cast<size_t>(g)].size());
  }

  void place_package(Regions::const_iterator first, Regions::const_iterator last, bool outer) {
    const size_t index = out_.panels.size();
    double inset_x = 0;
    if (outer) {
      Panel p;
      p.outer = true;
      p.title = "Package " + std::to_string(first->first.package);
      p.box = {machine_x_, y_, machine_w_, 0};
      out_.panels.push_back(p);
      y_ += outer_head;
      inset_x = outer_inset;
    }
    for (auto at = first; at != last; ++at) place_region(at->first, at->second, outer, inset_x);
    if (!outer) return;
    y_ += outer_inset - panel_gap;
    out_.panels[index].box.h = y_ - out_.panels[index].box.y;
    y_ += panel_gap;
  }

  void place_region(const Address& at, const Region& r, bool within, double inset_x) {
    Panel panel;
    panel.box = {machine_x_ + inset_x, y_, machine_w_ - 2 * inset_x, 0};
    name(panel, at, r, within);
    y_ += head_height;
    place_cores(panel, r.cores);
    double ranks_top = panel.box.y + 4;
    for (const Block& b : blocks(r.gpus, r.nics, Level::phb)) place_block(b);
    if (!r.gpus.empty()) ranks_top = y_;
    for (const int n : r.ranks) {
      out_.ranks[static_cast<size_t>(n)] = {margin, ranks_top, ranks_width, slot_height};
      ranks_top += pitch;
    }
    if (!r.ranks.empty()) y_ = std::max(y_, ranks_top - (pitch - slot_height) + 4 - inset / 2);
    y_ += inset / 2;
    panel.box.h = y_ - panel.box.y;
    out_.panels.push_back(std::move(panel));
    y_ += panel_gap;
  }

  void name(Panel& p, const Address& at, const Region& r, bool within) const {
    if (at.package >= 0 && !within) p.title = "Package " + std::to_string(at.package);
    if (at.node >= 0)
      p.title += (p.title.empty() ? "Memory node " : ", memory node ") + std::to_string(at.node);
    else if (within)
      p.title = "Beside all of the package";
    else if (at.package < 0)
      p.title = m_.numa.empty() ? "The machine" : "Place unknown";
    CpuSet cpus;
    for (const int c : r.cores)
      for (const int cpu : core(c).cpus) cpus.set(static_cast<size_t>(cpu));
    if (cpus.any()) p.detail = "CPUs " + to_list(cpus);
  }

  void place_cores(Panel& panel, const std::vector<int>& cores) {
    if (cores.empty()) return;
    const double width = panel.box.w - 2 * inset;
    const double narrowest = cores.size() > many_cores ? many_narrowest : core_narrowest;
    const auto most = static_cast<size_t>(width / narrowest);
    const size_t lines = (cores.size() + most - 1) / most;
    const size_t per_line = (cores.size() + lines - 1) / lines;
    const double cell = std::min(core_widest, width / static_cast<double>(per_line));
    for (size_t i = 0; i < cores.size(); ++i) {
      const auto line = static_cast<double>(i / per_line),
                 column = static_cast<double>(i % per_line);
      const bool allowed = is_allowed(cores[i]);
      const auto& owners = owners_[static_cast<size_t>(cores[i])];
      CoreRun* run = panel.runs.empty() ? nullptr : &panel.runs.back();
      if (!run || i % per_line == 0 || run->ranks != owners || run->allowed != allowed) {
        CoreRun fresh;
        fresh.box = {panel.box.x + inset + column * cell, y_ + line * (core_height + core_gap), 0,
                     core_height};
        fresh.cell = cell;
        fresh.ranks = owners;
        fresh.allowed = allowed;
        panel.runs.push_back(std::move(fresh));
        run = &panel.runs.back();
      }
      run->cores.push_back(cores[i]);
      run->box.w += cell;
    }
    y_ += static_cast<double>(lines) * (core_height + core_gap) + 7;
  }

  bool is_allowed(int c) const {
    const auto& cpus = core(c).cpus;
    return std::any_of(cpus.begin(), cpus.end(),
                       [&](int cpu) { return m_.allowed.test(static_cast<size_t>(cpu)); });
  }

  void place_block(const Block& b) {
    if (!b.enclosure) {
      place_devices(b);
      return;
    }
    const size_t index = out_.enclosures.size();
    const double side = enclosure_side * (1 + static_cast<double>(*b.enclosure));
    out_.enclosures.push_back({{gpu_x_ - side, y_, port_x_ + port_width - gpu_x_ + 2 * side, 0},
                               *b.enclosure,
                               b.inner.empty()});
    y_ += enclosure_inset;
    if (b.inner.empty()) place_devices(b);
    for (const Block& i : b.inner) place_block(i);
    // Both leave some space below themselves.
    y_ += enclosure_inset -
          (b.inner.empty() || !b.inner.back().enclosure ? pitch - slot_height : enclosure_gap);
    out_.enclosures[index].box.h = y_ - out_.enclosures[index].box.y;
    y_ += enclosure_gap;
  }

  // GPUs and the ports in use share the same height, evenly; ports left out stand below.
  void place_devices(const Block& b) {
    size_t slots = 0;
    for (const int g : b.gpus) slots += rows_of(g);
    const auto& beside = b.used.empty() ? b.unused : b.used;
    const size_t rows = std::max(slots, beside.size());
    const double stretch = slots == 0 ? 1 : static_cast<double>(rows) / static_cast<double>(slots);
    double before = 0;
    for (const int g : b.gpus) {
      const auto own = static_cast<double>(rows_of(g));
      const double height = own * pitch - (pitch - slot_height);
      const double middle = y_ + (before + own / 2) * stretch * pitch - (pitch - slot_height) / 2;
      out_.gpus[g] = {gpu_x_, middle - height / 2, gpu_width, height};
      place_ranks(g);
      before += own;
    }
    place_ports(beside, static_cast<double>(rows));
    y_ += static_cast<double>(rows) * pitch;
    if (b.used.empty()) return;
    place_ports(b.unused, static_cast<double>(b.unused.size()));
    y_ += static_cast<double>(b.unused.size()) * pitch;
  }

  void place_ports(const std::vector<std::vector<int>>& ports, double rows) {
    for (size_t i = 0; i < ports.size(); ++i) {
      const double middle =
          y_ + (static_cast<double>(i) + 0.5) * rows * pitch / static_cast<double>(ports.size()) -
          (pitch - slot_height) / 2;
      out_.ports.push_back(
          {{port_x_, middle - slot_height / 2, port_width, slot_height}, ports[i]});
    }
  }

  void place_ranks(int g) {
    double y = out_.gpus[g].y;
    for (const int r : at_gpu_[static_cast<size_t>(g)]) {
      out_.ranks[static_cast<size_t>(r)] = {margin, y, ranks_width, slot_height};
      y += pitch;
    }
  }

  // A rank with several GPUs stands beside all of them, where no other rank is in between.
  void stretch_ranks() {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].gpus.size() < 2) continue;
      double bottom = out_.ranks[r].bottom();
      for (const int g : ranks_[r].gpus) bottom = std::max(bottom, out_.gpus[g].bottom());
      const bool free = std::none_of(out_.ranks.begin(), out_.ranks.end(), [&](const Box& other) {
        return other.y > out_.ranks[r].y && other.y < bottom;
      });
      if (free) out_.ranks[r].h = bottom - out_.ranks[r].y;
    }
  }

  const Machine& m_;
  const std::vector<NicChoice>& choice_;
  const std::vector<RankPlan>& ranks_;
  Layout out_;
  double machine_x_ = 0, machine_w_ = 0, gpu_x_ = 0, port_x_ = 0, y_ = 0;
  std::vector<std::vector<int>> owners_;  // ranks of each core
  std::map<int, int> package_of_node_;
  Regions regions_;
  std::vector<std::vector<int>> at_gpu_;  // ranks that stand beside each GPU
};

}  // namespace

const svg::Box& Layout::port(int nic) const {
  const auto at = std::find_if(ports.begin(), ports.end(), [&](const PortSpot& p) {
    return std::find(p.nics.begin(), p.nics.end(), nic) != p.nics.end();
  });
  return at->box;
}

Layout lay_out(const Machine& machine, const std::vector<NicChoice>& nics,
               const std::vector<RankPlan>& ranks, double top) {
  return Layouter(machine, nics, ranks).run(top);
}

}  // namespace trainlaunch
