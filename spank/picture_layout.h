// Where everything stands in a picture of a machine.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bind/bind.h"
#include "links.h"
#include "svg.h"

namespace trainlaunch {

// Consecutive cores that belong to the same ranks, on one line.
struct CoreRun {
  svg::Box box;
  double cell = 0;         // width of one core
  std::vector<int> cores;  // positions in Machine::cores
  std::vector<int> ranks;
  bool allowed = true;
};

// A memory node; or a package, or the whole machine, for what is not of one node.
struct Panel {
  svg::Box box;
  std::string title, detail;
  bool outer = false;  // a package around the panels of its nodes
  std::vector<CoreRun> runs;
};

// Devices below a switch (pix), several switches (pxb) or a host bridge (phb).
struct Enclosure {
  svg::Box box;
  Level level = Level::pix;
  bool innermost = true;
};

struct PortSpot {
  svg::Box box;
  std::vector<int> nics;  // one, or several unused for the same reason
};

struct Layout {
  double width = 0, height = 0;
  std::vector<Panel> panels;  // the outer ones before those inside them
  std::vector<Enclosure> enclosures;
  std::map<int, svg::Box> gpus;
  std::vector<PortSpot> ports;
  std::vector<svg::Box> ranks;           // empty when no plan is shown
  std::vector<std::vector<Link>> links;  // of each rank
  std::vector<bool> at_panel;            // of each rank: without a GPU, it points at a panel

  const svg::Box& port(int nic) const;
};

inline constexpr double picture_margin = 20, panel_inset = 14;

// `ranks`: the plan's, or none. `top`: where the machine begins, below the title.
Layout lay_out(const Machine& machine, const std::vector<NicChoice>& nics,
               const std::vector<RankPlan>& ranks, double top);

}  // namespace trainlaunch
