// Loss curves, drawn.
#pragma once

#include <string>
#include <vector>

#include "train/metrics.h"

namespace trainlaunch {

// What both drawings show: a window onto steps and losses, with round numbers along its sides.
struct Frame {
  double first_step = 0, last_step = 1;
  double low = 0, high = 1;
  std::vector<double> step_ticks, loss_ticks;

  double across(double step) const { return (step - first_step) / (last_step - first_step); }
  double up(double loss) const { return (loss - low) / (high - low); }
};
Frame frame_of(const Curves& curves);
// About `count` round numbers (1, 2 or 5 times a power of ten) from low to high.
std::vector<double> round_numbers(double low, double high, int count);
std::string tick_label(double value);

// For a terminal: training as a line of dots, validation as marks. `unicode`: in Braille patterns.
std::string draw_text(const Curves& curves, int columns, int rows, bool unicode);
// A whole SVG file.
std::string draw_svg(const Curves& curves, const std::string& title);

}  // namespace trainlaunch
