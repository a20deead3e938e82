#include "picture.h"

#include <algorithm>
#include <array>
#include <set>

#include "picture_layout.h"
#include "report_parts.h"

namespace trainlaunch {
namespace {

using svg::Box;
using svg::Drawing;
using svg::Font;
using svg::number;

// Colours that readers with any colour vision tell apart: most are Okabe and Ito's, without the
// yellow that is lost on white. Ranks beyond them begin again; their numbers are written anyway.
struct Hue {
  const char *strong, *pale, *on_strong;
};
constexpr std::array<Hue, 8> hues{{{"#0072b2", "#e3f0f8", "#ffffff"},
                                   {"#e69f00", "#fdf3dc", "#1f2933"},
                                   {"#009e73", "#dff4ed", "#ffffff"},
                                   {"#cc79a7", "#f9ecf3", "#1f2933"},
                                   {"#56b4e9", "#e6f4fc", "#1f2933"},
                                   {"#d55e00", "#fbe8db", "#ffffff"},
                                   {"#5b4ea3", "#ebe9f6", "#ffffff"},
                                   {"#8a8a1f", "#f3f3dd", "#ffffff"}}};
constexpr const char *paper = "#ffffff", *ink = "#1f2933", *soft = "#5f6b7a", *faint = "#8b96a3",
                     *outline = "#c9d1da", *free_core = "#dde3ea";
constexpr Font core_font{10.5, true, false, "#ffffff", "middle"};
constexpr size_t most_bands = 4;     // ranks that can be told apart in one core
constexpr size_t most_warnings = 8;  // below the machine

const Hue& hue_of(size_t rank) { return hues[rank % hues.size()]; }
const Hue& hue_of(int rank) { return hue_of(static_cast<size_t>(rank)); }

std::string filled(const char* fill, const char* stroke, double width = 1.2) {
  return std::string("fill=\"") + fill + "\" stroke=\"" + stroke + "\" stroke-width=\"" +
         number(width) + '"';
}
std::string dashed(const std::string& look) { return look + " stroke-dasharray=\"4 3\""; }

std::string after_comma(const std::string& words) { return words.empty() ? "" : ", " + words; }

std::string base_name(const std::string& file) {
  return file.substr(file.find_last_of('/') == std::string::npos ? 0 : file.find_last_of('/') + 1);
}

const char* meaning(Level level) {
  switch (level) {
    case Level::pix:
      return "below one PCI switch";
    case Level::pxb:
      return "below several switches";
    case Level::phb:
      return "below one host bridge";
    case Level::node:
      return "in one memory node";
    case Level::sys:
      return "across memory nodes";
  }
  return "";
}

const char* look_of(Level enclosure) {
  switch (enclosure) {
    case Level::pix:
      return "fill=\"#eef1f5\" stroke=\"#9aa5b1\" stroke-width=\"1\"";
    case Level::pxb:
      return "fill=\"#eef1f5\" stroke=\"#9aa5b1\" stroke-width=\"1\" stroke-dasharray=\"7 3\"";
    default:
      return "fill=\"none\" stroke=\"#9aa5b1\" stroke-width=\"1\" stroke-dasharray=\"1.5 3\"";
  }
}

class Picture {
 public:
  Picture(const Machine& m, const std::vector<NicChoice>& nics, const Answer* answer)
      : m_(m), choice_(nics), answer_(answer) {
    static const std::vector<RankPlan> none;
    layout_ = lay_out(m, nics, answer ? answer->plan.ranks : none, 104);
    for (size_t r = 0; r < layout_.ranks.size(); ++r) {
      for (const int g : answer->plan.ranks[r].gpus) gpu_ranks_[g].insert(static_cast<int>(r));
      for (const int n : answer->plan.ranks[r].nics) nic_ranks_[n].insert(static_cast<int>(r));
    }
    y_ = layout_.height;
  }

  std::string draw() {
    const std::string what =
        (answer_ ? "Plan for " : "") + (m_.file.empty()
                                            ? std::string(answer_ ? "this machine" : "This machine")
                                            : base_name(m_.file));
    heading(what);
    for (const Panel& p : layout_.panels) panel(p);
    for (const Enclosure& e : layout_.enclosures) enclosure(e);
    for (size_t r = 0; r < layout_.ranks.size(); ++r) lines_to_gpus(r);
    lines_to_ports();
    for (const auto& [g, box] : layout_.gpus) gpu(g, box);
    for (const PortSpot& p : layout_.ports) port(p);
    for (size_t r = 0; r < layout_.ranks.size(); ++r) rank(r);
    for (const Panel& p : layout_.panels) {
      const bool words = std::all_of(p.runs.begin(), p.runs.end(), [](const CoreRun& run) {
        return run.ranks.empty() || has_room(run);
      });
      for (const CoreRun& run : p.runs) cores(run, words);
    }
    for (const auto& [g, box] : layout_.gpus) level_at(g, box);
    legend();
    warnings();
    return d_.finish(layout_.width, y_ + picture_margin, what, paper);
  }

 private:
  double width() const { return layout_.width - 2 * picture_margin; }
  const RankPlan& plan_of(size_t r) const { return answer_->plan.ranks[r]; }

  void heading(const std::string& what) {
    const Font title{19, true}, small{12.5, false, false, soft}, column{11, true, false, faint};
    d_.text(picture_margin, 36, title, svg::fit(what, width(), title));
    d_.text(picture_margin, 58, small, svg::fit(machine_counts(m_), width(), small));
    const double y = 92;
    if (!layout_.ranks.empty()) d_.text(picture_margin, y, column, "RANKS");
    if (!layout_.gpus.empty()) d_.text(layout_.gpus.begin()->second.x, y, column, "GPUS");
    if (!layout_.ports.empty()) d_.text(layout_.ports.front().box.x, y, column, "FABRIC PORTS");
  }

  void panel(const Panel& p) {
    d_.rect(p.box, 8, p.outer ? filled("#f3f5f8", outline, 1) : filled("#fbfcfd", outline, 1));
    const Font title{12.5, true}, detail{11, false, true, soft};
    const double x = p.box.x + (p.outer ? 11 : panel_inset), y = p.box.y + (p.outer ? 17 : 19);
    d_.text(x, y, title, p.title);
    const double used = svg::width_of(p.title, title) + 14;
    if (!p.detail.empty()) {
      d_.begin(p.detail);
      d_.text(p.box.right() - panel_inset, y, {11, false, true, soft, "end"},
              svg::fit(p.detail, p.box.w - 2 * panel_inset - used, detail));
      d_.end();
    }
  }

  void cores(const CoreRun& run, bool words) {
    std::string title = (run.cores.size() == 1 ? "core " : "cores ") + to_list(run.cores) + ": ";
    if (!run.ranks.empty())
      title += (run.ranks.size() == 1 ? "rank " : "ranks ") + to_list(run.ranks);
    else if (!run.allowed)
      title += "not allowed";
    else
      title += answer_ ? "no rank's own" : "free";
    d_.begin(title);
    if (run.ranks.empty())
      d_.rect(run.box, 2, run.allowed ? filled(free_core, free_core) : filled(paper, outline));
    else if (run.ranks.size() <= most_bands)
      for (size_t i = 0; i < run.ranks.size(); ++i) {
        const double h = run.box.h / static_cast<double>(run.ranks.size());
        const char* colour = hue_of(run.ranks[i]).strong;
        d_.rect({run.box.x, run.box.y + static_cast<double>(i) * h, run.box.w, h}, 0,
                filled(colour, colour, 0));
      }
    else
      d_.rect(run.box, 0, filled(soft, soft, 0));
    separate(run);
    if (!run.ranks.empty()) core_label(run, words ? long_label(run) : to_list(run.ranks));
    d_.end();
  }

  // White lines between cores, where these are wide enough to be seen.
  void separate(const CoreRun& run) {
    if (run.cell < 4) return;
    std::string path;
    for (size_t i = 0; i <= run.cores.size(); ++i)
      path += 'M' + number(run.box.x + static_cast<double>(i) * run.cell) + ' ' +
              number(run.box.y - 1) + 'v' + number(run.box.h + 2);
    d_.path(path, std::string("stroke=\"#fbfcfd\" stroke-width=\"1.6\""));
  }

  static std::string long_label(const CoreRun& run) {
    return (run.ranks.size() == 1 ? "rank " : "ranks ") + to_list(run.ranks);
  }

  // Some cores beside the words stay in sight.
  static bool has_room(const CoreRun& run) {
    const double w = svg::width_of(long_label(run), core_font) + 6;
    return w <= run.cell || w + 2 * run.cell <= run.box.w;
  }

  // Inside one core if it fits there; else on a patch that keeps the lines between cores off it.
  void core_label(const CoreRun& run, const std::string& label) {
    const bool one = run.ranks.size() == 1;
    Font font = core_font;
    font.colour = one ? hue_of(run.ranks.front()).on_strong : paper;
    const double w = svg::width_of(label, font) + 6;
    if (w > run.box.w) return;
    const bool inside = w <= run.cell;
    const auto middle = static_cast<double>((run.cores.size() - 1) / 2);
    const double x = run.box.x + (inside ? (middle + 0.5) * run.cell : run.box.w / 2);
    const char* patch = one ? hue_of(run.ranks.front()).strong : soft;
    if (!inside || !one) d_.rect({x - w / 2, run.box.y, w, run.box.h}, 0, filled(patch, patch, 0));
    d_.text(x, run.box.y + 12.5, font, label);
  }

  void enclosure(const Enclosure& e) {
    d_.begin(std::string(name_of(e.level)) + ": " + meaning(e.level));
    d_.rect(e.box, 7, look_of(e.level));
    if (layout_.ranks.empty() && e.innermost)
      d_.text((gpu_right() + layout_.ports.front().box.x) / 2, e.box.middle() + 4,
              {11, true, false, faint, "middle"}, name_of(e.level));
    d_.end();
    enclosures_.insert(e.level);
  }

  double gpu_right() const { return layout_.gpus.begin()->second.right(); }

  // ---- lines

  std::string stroke(size_t rank, double width) const {
    return std::string("stroke=\"") + hue_of(rank).strong + "\" stroke-width=\"" + number(width) +
           '"';
  }

  void lines_to_gpus(size_t r) {
    const Box& from = layout_.ranks[r];
    if (layout_.at_panel[r]) {
      const Panel* beside = nullptr;
      for (const Panel& p : layout_.panels)
        if (!p.outer && p.box.y <= from.middle() && from.middle() <= p.box.bottom()) beside = &p;
      if (!beside || plan_of(r).keep_cpus) return;
      d_.curve(from.right(), from.middle(), beside->box.x, from.middle(), stroke(r, 2));
      d_.circle(beside->box.x, from.middle(), 3.5, filled(hue_of(r).strong, paper));
      return;
    }
    for (const int g : plan_of(r).gpus) {
      const Box& to = layout_.gpus.at(g);
      const double end =
          gpu_ranks_[g].size() > 1 && to.y <= from.middle() && from.middle() <= to.bottom()
              ? from.middle()
              : to.middle();
      const double start = from.y + 8 <= end && end <= from.bottom() - 8 ? end : from.middle();
      d_.curve(from.right(), start, to.x, end, stroke(r, 2.4));
    }
  }

  // Lines that meet in a port end beside each other.
  void lines_to_ports() {
    struct Line {
      size_t rank;
      double x, y;  // where it begins: at its GPU, or at a rank that has none
      Level level;
    };
    std::map<int, std::vector<Line>> at_port;
    for (size_t r = 0; r < layout_.links.size(); ++r) {
      for (const Link& l : layout_.links[r]) {
        const Box& from = layout_.gpus.at(l.gpu);
        at_port[l.nic].push_back({r, from.right(), from.middle(), l.level});
      }
      const Box& from = layout_.ranks[r];
      if (plan_of(r).gpus.empty())
        for (const int n : plan_of(r).nics)
          at_port[n].push_back({r, from.right(), from.middle(), Level::node});
    }
    for (auto& [nic, lines] : at_port) {
      const Box& to = layout_.port(nic);
      std::stable_sort(lines.begin(), lines.end(),
                       [](const Line& a, const Line& b) { return a.y < b.y; });
      const auto gaps = static_cast<double>(lines.size() - 1);
      const double apart = std::min(8.0, (to.h - 10) / std::max(1.0, gaps));
      for (size_t i = 0; i < lines.size(); ++i) {
        const double end = to.middle() + (static_cast<double>(i) - gaps / 2) * apart;
        std::string look = stroke(lines[i].rank, lines[i].level <= Level::pxb ? 2.4 : 1.8);
        if (lines[i].level == Level::sys) look += " stroke-dasharray=\"6 4\"";
        d_.curve(lines[i].x, lines[i].y, to.x, end, look);
        ends_.push_back({to.x, end, lines[i].rank});
      }
    }
  }

  // ---- boxes

  // White, or in the colour of the one rank that has it.
  std::string look_of_ranks(const std::set<int>& ranks) const {
    if (!answer_) return filled(paper, soft);
    if (ranks.size() == 1)
      return filled(hue_of(*ranks.begin()).pale, hue_of(*ranks.begin()).strong, 1.6);
    return filled(paper, ranks.empty() ? faint : ink, ranks.empty() ? 1.2 : 1.6);
  }

  void two_lines(const Box& box, const std::string& first, const std::string& second,
                 const Font& f1, const Font& f2) {
    const double x = box.x + 12, room = box.w - 20;
    d_.text(x, box.middle() + (second.empty() ? 4.5 : -3), f1, svg::fit(first, room, f1));
    d_.text(x, box.middle() + 12, f2, svg::fit(second, room, f2));
  }

  void gpu(int g, const Box& box) {
    const Gpu& gpu = m_.gpus[static_cast<size_t>(g)];
    const auto& ranks = gpu_ranks_[g];
    std::string title = "GPU " + std::to_string(gpu.index) + after_comma(pci_name(m_, gpu)) + ", " +
                        name_of(gpu.vendor);
    if (!gpu.uuid.empty()) title += ", " + gpu.uuid.substr(0, 96);
    if (answer_)
      title += ranks.empty() ? ": no rank"
                             : (ranks.size() == 1 ? ": rank " : ": ranks ") +
                                   to_list(std::vector<int>(ranks.begin(), ranks.end()));
    d_.begin(title);
    const std::string look = look_of_ranks(ranks);
    d_.rect(box, 5, answer_ && ranks.empty() ? dashed(look) : look);
    const Font name{13, true}, side{11, false, false, soft, "end"};
    two_lines(box, "GPU " + std::to_string(gpu.index), pci_name(m_, gpu), name,
              {11, false, true, soft});
    d_.text(box.right() - 9, box.middle() - 3, side,
            answer_ && ranks.empty() ? "no rank" : name_of(gpu.vendor));
    d_.end();
  }

  void port(const PortSpot& p) {
    const Nic& nic = m_.nics[static_cast<size_t>(p.nics.front())];
    const NicChoice& choice = choice_[static_cast<size_t>(p.nics.front())];
    const Font name{13, true, false, choice.used ? ink : soft},
        second{choice.used ? 11.0 : 10.5, false, choice.used, soft};
    if (!choice.used) {
      const bool one = p.nics.size() == 1;
      std::string names;
      for (const int n : p.nics)
        names += (names.empty() ? "" : ", ") +
                 svg::fit(to_string(m_.nics[static_cast<size_t>(n)]), 300, second);
      d_.begin("not used: " + names + (one ? after_comma(pci_name(m_, nic)) : "") + ": " +
               choice.why);
      d_.rect(p.box, 5, dashed(filled("#f6f7f9", "#b8c1cb", 1.1)));
      two_lines(p.box, one ? to_string(nic) : std::to_string(p.nics.size()) + " ports not used",
                choice.why, name, second);
      d_.end();
      return;
    }
    const auto& ranks = nic_ranks_[p.nics.front()];
    d_.begin(to_string(nic) + after_comma(pci_name(m_, nic)) + ", " + name_of(nic.link_layer) +
             after_comma(rate_name(nic)));
    d_.rect(p.box, 5, look_of_ranks(ranks));
    two_lines(p.box, to_string(nic), pci_name(m_, nic), name, second);
    const Font side{11, false, false, soft, "end"};
    const double room = p.box.w - 32 - svg::width_of(to_string(nic), name);
    const std::string about = nic.rate_gbps > 0                      ? rate_name(nic)
                              : nic.link_layer == LinkLayer::unknown ? ""
                                                                     : name_of(nic.link_layer);
    if (svg::width_of(about, side) <= room)
      d_.text(p.box.right() - 9, p.box.middle() - 3, side, about);
    d_.end();
    for (const End& e : ends_)
      if (e.y >= p.box.y && e.y <= p.box.bottom())
        d_.circle(e.x, e.y, 3.2, filled(hue_of(e.rank).strong, paper));
  }

  void rank(size_t r) {
    const RankPlan& p = plan_of(r);
    const Box& box = layout_.ranks[r];
    const Hue& hue = hue_of(r);
    std::string title = "rank " + std::to_string(r) + " (local)";
    for (const std::string& why : p.why) title += "; " + why;
    d_.begin(title);
    d_.rect(box, 5, filled(hue.pale, hue.strong, 1.6));
    d_.rect({box.x, box.y, 6, box.h}, 3, filled(hue.strong, hue.strong, 0));
    const Font name{13, true}, cpus{11, false, true, soft}, side{11, false, false, soft, "end"};
    two_lines({box.x + 4, box.y, box.w - 4, box.h}, "rank " + std::to_string(r),
              p.keep_cpus ? "CPUs left alone" : "CPUs " + to_list(p.cpus), name, cpus);
    if (p.mem)
      d_.text(box.right() - 9, box.middle() - 3, side, "memory node " + std::to_string(*p.mem));
    d_.end();
  }

  // How near a GPU's ports are, written beside it.
  void level_at(int g, const Box& box) {
    std::set<Level> levels;
    int owner = -1;
    for (size_t r = 0; r < layout_.links.size(); ++r)
      for (const Link& l : layout_.links[r])
        if (l.gpu == g) {
          levels.insert(l.level);
          owner = static_cast<int>(r);
        }
    if (levels.empty()) return;
    std::string words;
    for (const Level l : levels) words += (words.empty() ? "" : " ") + std::string(name_of(l));
    level_pill(box.right() + 16, box.middle(), words,
               gpu_ranks_[g].size() == 1 ? hue_of(owner).strong : ink);
    levels_.insert(levels.begin(), levels.end());
  }

  double level_pill(double x, double middle, const std::string& words, const char* colour) {
    const Font font{10.5, true, false, ink, "middle"};
    const double w = svg::width_of(words, font) + 14;
    d_.rect({x, middle - 8.5, w, 17}, 8.5, filled(paper, colour, 1.2));
    d_.text(x + w / 2, middle + 3.8, font, words);
    return w;
  }

  // ---- below the machine

  void legend() {
    const Font font{11.5, false, false, soft};
    double x = picture_margin;
    y_ += 14;
    // Advances to the place of an item of this width, on the next line if need be.
    const auto advance = [&](double symbol, const std::string& words) {
      const double w = symbol + 7 + svg::width_of(words, font);
      if (x > picture_margin && x + w > picture_margin + width()) {
        x = picture_margin;
        y_ += 24;
      }
      const double at = x;
      d_.text(at + symbol + 7, y_ + 4, font, words);
      x += w + 20;
      return at;
    };
    bool own = false, spare = false, forbidden = false, shared = false;
    for (const Panel& p : layout_.panels)
      for (const CoreRun& run : p.runs) {
        own = own || run.ranks.size() == 1;
        shared = shared || run.ranks.size() > 1;
        spare = spare || (run.ranks.empty() && run.allowed);
        forbidden = forbidden || (run.ranks.empty() && !run.allowed);
      }
    const auto square = [&](const char* fill, const char* stroke, const char* words) {
      const double at = advance(12, words);
      d_.rect({at, y_ - 6, 12, 12}, 2, filled(fill, stroke));
    };
    if (own) square(hues[0].strong, hues[0].strong, "a core, in its rank's colour");
    if (shared) {
      const double at = advance(12, "a core of several ranks");
      for (size_t i = 0; i < 3; ++i)
        d_.rect({at, y_ - 6 + 4 * static_cast<double>(i), 12, 4}, 0,
                filled(hues[i].strong, hues[i].strong, 0));
    }
    if (spare) square(free_core, free_core, answer_ ? "a core of no rank's own" : "a core");
    if (forbidden) square(paper, outline, "a core that may not be used");
    for (const Level l : levels_) {
      const Font pill{10.5, true};
      const double at = advance(svg::width_of(name_of(l), pill) + 14, meaning(l));
      level_pill(at, y_, name_of(l), faint);
    }
    for (const Level l : enclosures_) {
      const double at = advance(26, l == Level::pix   ? "one PCI switch (PIX)"
                                    : l == Level::pxb ? "several PCI switches (PXB)"
                                                      : "one host bridge (PHB)");
      d_.rect({at, y_ - 7, 26, 14}, 4, look_of(l));
    }
    if (std::any_of(choice_.begin(), choice_.end(), [](const NicChoice& c) { return !c.used; })) {
      const double at = advance(26, "a port that is left out, and why");
      d_.rect({at, y_ - 7, 26, 14}, 4, dashed(filled("#f6f7f9", "#b8c1cb", 1.1)));
    }
    y_ += 10;
  }

  void warnings() {
    if (!answer_ || answer_->plan.warnings.empty()) return;
    const Font code{12, true, false, "#9a3b00"}, words{12, false, false, ink};
    const auto& all = answer_->plan.warnings;
    y_ += 10;
    for (size_t i = 0; i < std::min(all.size(), most_warnings); ++i) {
      y_ += 20;
      const std::string x = number(picture_margin), base = number(y_ + 1);
      d_.path('M' + x + ' ' + base + "l6 -11 6 11z", filled("#e69f00", "#e69f00", 1));
      d_.text(picture_margin + 20, y_, code, all[i].code);
      y_ += 2;
      for (const std::string& line :
           svg::wrap(all[i].message + ". Mend it with: " + all[i].fix, width() - 20, words)) {
        y_ += 16;
        d_.text(picture_margin + 20, y_, words, line);
      }
    }
    if (all.size() > most_warnings) {
      y_ += 22;
      d_.text(picture_margin + 20, y_, words,
              "and " + std::to_string(all.size() - most_warnings) + " more: --format=text");
    }
  }

  struct End {
    double x, y;
    size_t rank;
  };

  const Machine& m_;
  const std::vector<NicChoice>& choice_;
  const Answer* answer_;
  Layout layout_;
  Drawing d_;
  double y_ = 0;
  std::map<int, std::set<int>> gpu_ranks_, nic_ranks_;
  std::set<Level> levels_, enclosures_;
  std::vector<End> ends_;
};

Status drawable(const Machine& m, size_t ranks) {
  const auto too_many = [](size_t count, const char* what) {
    return fail(std::to_string(count) + ' ' + what +
                " are too many for a picture, which has up to " + std::to_string(max_drawn) +
                "; use --format=text");
  };
  if (m.gpus.size() > max_drawn) return too_many(m.gpus.size(), "GPUs");
  if (m.nics.size() > max_drawn) return too_many(m.nics.size(), "ports");
  if (m.numa.size() > max_drawn) return too_many(m.numa.size(), "memory nodes");
  if (ranks > max_drawn) return too_many(ranks, "ranks");
  return {};
}

}  // namespace

Result<std::string> machine_svg(const Machine& m, const std::vector<NicChoice>& nics) {
  if (auto s = drawable(m, 0); !s) return forward(s);
  return Picture(m, nics, nullptr).draw();
}

Result<std::string> plan_svg(const Answer& a) {
  if (auto s = drawable(a.machine, a.plan.ranks.size()); !s) return forward(s);
  return Picture(a.machine, a.plan.nics, &a).draw();
}

}  // namespace trainlaunch
