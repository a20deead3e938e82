#include "train/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace trainlaunch {

std::vector<double> round_numbers(double low, double high, int count) {
  const double raw = (high - low) / std::max(1, count);
  if (!(raw > 0) || !std::isfinite(raw)) return {low};
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double spacing = 10 * power;
  for (double factor : {1.0, 2.0, 5.0})
    if (raw <= factor * power) {
      spacing = factor * power;
      break;
    }
  std::vector<double> numbers;
  for (double k = std::ceil(low / spacing - 1e-9); k * spacing <= high + 1e-9 * spacing; ++k)
    numbers.push_back(k * spacing);
  return numbers;
}

std::string tick_label(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value == 0 ? 0.0 : value);
  return text;
}

Frame frame_of(const Curves& curves) {
  Frame f;
  bool any = false;
  for (const auto* curve : {&curves.training, &curves.validation}) {
    for (const Curves::Point& p : *curve) {
      const auto step = static_cast<double>(p.step);
      f.first_step = any ? std::min(f.first_step, step) : step;
      f.last_step = any ? std::max(f.last_step, step) : step;
      f.low = any ? std::min(f.low, p.loss) : p.loss;
      f.high = any ? std::max(f.high, p.loss) : p.loss;
      any = true;
    }
  }
  if (f.last_step <= f.first_step) f.last_step = f.first_step + 1;
  const double margin = std::max(0.03 * (f.high - f.low), 1e-3 * std::max(1.0, std::abs(f.high)));
  f.low -= margin;
  f.high += margin;
  f.step_ticks = round_numbers(f.first_step, f.last_step, 5);
  f.loss_ticks = round_numbers(f.low, f.high, 5);
  return f;
}

namespace {

// Dots two wide and four high in each character cell, as Braille patterns have them, or one.
class Canvas {
 public:
  Canvas(int columns, int rows, bool unicode)
      : columns_(columns),
        wide_(unicode ? 2 : 1),
        high_(unicode ? 4 : 1),
        unicode_(unicode),
        dots_(static_cast<size_t>(columns * rows), 0),
        marks_(dots_.size(), false) {}

  int width() const { return columns_ * wide_; }
  int height() const { return static_cast<int>(dots_.size()) / columns_ * high_; }

  void dot(int x, int y) {  // y from the top
    static constexpr int bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    dots_[cell(x, y)] |= bits[y % high_][x % wide_];
  }
  void mark(int x, int y) { marks_[cell(x, y)] = true; }

  std::string row(int r) const {
    std::string text;
    for (int c = 0; c < columns_; ++c) {
      const size_t i = static_cast<size_t>(r * columns_ + c);
      if (marks_[i])
        text += unicode_ ? "●" : "o";
      else if (dots_[i] == 0)
        text += ' ';
      else if (!unicode_)
        text += '.';
      else  // U+2800 + pattern
        text += {'\xE2', static_cast<char>(0xA0 | dots_[i] >> 6),
                 static_cast<char>(0x80 | (dots_[i] & 0x3F))};
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
  }

 private:
  size_t cell(int x, int y) const { return static_cast<size_t>(y / high_ * columns_ + x / wide_); }

  int columns_, wide_, high_;
  bool unicode_;
  std::vector<int> dots_;
  std::vector<bool> marks_;
};

int place(double fraction, int size) {
  return std::clamp(static_cast<int>(std::lround(fraction * (size - 1))), 0, size - 1);
}

std::string padded(const std::string& text, size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

}  // namespace

std::string draw_text(const Curves& curves, int columns, int rows, bool unicode) {
  const Frame f = frame_of(curves);
  size_t gutter = 0;
  for (double t : f.loss_ticks) gutter = std::max(gutter, tick_label(t).size());
  const int wide = std::max(10, columns - static_cast<int>(gutter) - 3);
  Canvas canvas(wide, rows, unicode);
  auto x = [&](double step) { return place(f.across(step), canvas.width()); };
  auto y = [&](double loss) { return place(1 - f.up(loss), canvas.height()); };

  for (size_t i = 0; i < curves.training.size(); ++i) {
    const auto& b = curves.training[i];
    const auto& a = curves.training[i > 0 ? i - 1 : 0];
    const int xa = x(static_cast<double>(a.step)), xb = x(static_cast<double>(b.step)),
              ya = y(a.loss), yb = y(b.loss), steps = std::max({1, xb - xa, std::abs(yb - ya)});
    for (int s = 0; s <= steps; ++s)
      canvas.dot(xa + (xb - xa) * s / steps, ya + (yb - ya) * s / steps);
  }
  for (const auto& p : curves.validation) canvas.mark(x(static_cast<double>(p.step)), y(p.loss));

  std::vector<std::string> labels(static_cast<size_t>(rows));
  for (double t : f.loss_ticks)
    labels[static_cast<size_t>(place(1 - f.up(t), rows))] = tick_label(t);
  std::string out = padded("", gutter) +
                    (unicode ? "  loss (nats per byte) by step: ⠤⠤ training, ● validation\n"
                             : "  loss (nats per byte) by step: .. training, o validation\n");
  for (int r = 0; r < rows; ++r) {
    const std::string& label = labels[static_cast<size_t>(r)];
    out += padded(label, gutter) + (unicode ? (label.empty() ? " │" : " ┤") : " |") +
           canvas.row(r) + "\n";
  }
  out += padded("", gutter) + (unicode ? " └" : " +");
  for (int c = 0; c < wide; ++c) out += unicode ? "─" : "-";
  std::string below(gutter + 2, ' ');
  for (double t : f.step_ticks) {
    const std::string label = tick_label(t);
    const size_t at = gutter + 2 + static_cast<size_t>(place(f.across(t), wide));
    const size_t begin = std::min(at - std::min(at, label.size() / 2),
                                  gutter + 2 + static_cast<size_t>(wide) - label.size());
    if (begin < below.size() && below.size() > gutter + 2) continue;
    below.resize(std::max(below.size(), begin), ' ');
    below += label;
  }
  return out + "\n" + below + "\n";
}

namespace {

constexpr double svg_width = 820, svg_height = 460;
constexpr double left = 70, right = 20, top = 50, bottom = 55;

std::string number(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", v);
  return text;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out;
}

std::string line(double x1, double y1, double x2, double y2, const char* look) {
  return "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) +
         "\" y2=\"" + number(y2) + "\" " + look + "/>\n";
}
std::string words(double x, double y, const char* look, const std::string& text) {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" " + look + ">" + escaped(text) +
         "</text>\n";
}

}  // namespace

std::string draw_svg(const Curves& curves, const std::string& title) {
  const Frame f = frame_of(curves);
  const double wide = svg_width - left - right, high = svg_height - top - bottom,
               floor = svg_height - bottom;
  auto x = [&](double step) { return left + f.across(step) * wide; };
  auto y = [&](double loss) { return floor - f.up(loss) * high; };
  constexpr const char *grid = "stroke=\"#e3e3e3\"", *axis = "stroke=\"#555\"",
                       *blue = "stroke=\"#1f6fb4\" stroke-width=\"1.5\" fill=\"none\"",
                       *orange = "stroke=\"#d9620f\" stroke-width=\"2\" fill=\"none\"";

  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + number(svg_width) +
                    "\" height=\"" + number(svg_height) + "\" viewBox=\"0 0 " + number(svg_width) +
                    " " + number(svg_height) +
                    "\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#333\">\n"
                    "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
  svg += words(left, 28, "font-size=\"16\"", title);
  for (double t : f.loss_ticks) {
    svg += line(left, y(t), left + wide, y(t), grid);
    svg += words(left - 8, y(t) + 4, "text-anchor=\"end\"", tick_label(t));
  }
  for (double t : f.step_ticks) {
    svg += line(x(t), top, x(t), floor, grid);
    svg += words(x(t), floor + 18, "text-anchor=\"middle\"", tick_label(t));
  }
  svg += line(left, top, left, floor, axis) + line(left, floor, left + wide, floor, axis);
  svg += words(left + wide / 2, svg_height - 12, "text-anchor=\"middle\"", "step");
  svg += "<text transform=\"translate(20 " + number(top + high / 2) +
         ") rotate(-90)\" text-anchor=\"middle\">loss, nats per byte</text>\n";

  auto path = [&](const std::vector<Curves::Point>& curve, const char* look) {
    std::string points;
    for (const auto& p : curve)
      points += (points.empty() ? "" : " ") + number(x(static_cast<double>(p.step))) + "," +
                number(y(p.loss));
    svg += "<polyline points=\"" + points + "\" " + look + "/>\n";
  };
  path(curves.training, blue);
  path(curves.validation, orange);
  for (const auto& p : curves.validation)
    svg += "<circle cx=\"" + number(x(static_cast<double>(p.step))) + "\" cy=\"" +
           number(y(p.loss)) + "\" r=\"4\" fill=\"#d9620f\"/>\n";

  const double legend = left + wide - 190;
  svg += "<rect x=\"" + number(legend - 12) + "\" y=\"" + number(top + 8) +
         "\" width=\"190\" height=\"52\" fill=\"#fff\" stroke=\"#ccc\"/>\n";
  svg += line(legend, top + 25, legend + 30, top + 25, blue) +
         words(legend + 40, top + 29, "", "training");
  svg += line(legend, top + 45, legend + 30, top + 45, orange) +
         words(legend + 40, top + 49, "", "validation");
  return svg + "</svg>\n";
}

}  // namespace trainlaunch
