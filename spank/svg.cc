#include "svg.h"

#include <algorithm>
#include <cstdio>

#include "base/text.h"
#include "report_parts.h"

namespace trainlaunch::svg {
namespace {

std::string escaped(std::string_view words) {
  std::string out;
  for (const char c : plain(words)) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string attribute(const char* name, double value) {
  return std::string(" ") + name + "=\"" + number(value) + '"';
}

}  // namespace

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  std::string out = text;
  if (out.ends_with(".0")) out.resize(out.size() - 2);
  return out == "-0" ? "0" : out;
}

double width_of(std::string_view words, const Font& font) {
  const double em = font.mono ? 0.605 : font.bold ? 0.64 : 0.57;
  return static_cast<double>(plain(words).size()) * em * font.size;
}

std::string fit(std::string_view words, double width, const Font& font) {
  std::string s = plain(words);
  if (width_of(s, font) <= width) return s;
  const auto room = static_cast<size_t>(std::max(0.0, width / width_of("m", font)));
  s.resize(std::min(s.size(), room > 3 ? room - 3 : 0));
  return s + "...";
}

std::vector<std::string> wrap(std::string_view text, double width, const Font& font) {
  std::vector<std::string> lines;
  std::string line;
  const std::string shown = plain(text);
  for (const std::string_view word : words(shown)) {
    const std::string longer = (line.empty() ? "" : line + ' ') + std::string(word);
    if (!line.empty() && width_of(longer, font) > width) {
      lines.push_back(line);
      line = word;
    } else {
      line = longer;
    }
  }
  lines.push_back(line);
  for (std::string& l : lines) l = fit(l, width, font);
  return lines;
}

void Drawing::rect(const Box& b, double radius, const std::string& look) {
  body_ += "<rect" + attribute("x", b.x) + attribute("y", b.y) + attribute("width", b.w) +
           attribute("height", b.h) + (radius > 0 ? attribute("rx", radius) : "") + ' ' + look +
           "/>\n";
}

void Drawing::circle(double x, double y, double r, const std::string& look) {
  body_ +=
      "<circle" + attribute("cx", x) + attribute("cy", y) + attribute("r", r) + ' ' + look + "/>\n";
}

void Drawing::curve(double x1, double y1, double x2, double y2, const std::string& look) {
  const std::string middle = number((x1 + x2) / 2);
  path("M" + number(x1) + ' ' + number(y1) + " C" + middle + ' ' + number(y1) + ' ' + middle + ' ' +
           number(y2) + ' ' + number(x2) + ' ' + number(y2),
       "fill=\"none\" " + look);
}

void Drawing::path(const std::string& data, const std::string& look) {
  body_ += "<path d=\"" + data + "\" " + look + "/>\n";
}

void Drawing::text(double x, double baseline, const Font& f, std::string_view words) {
  if (words.empty()) return;
  body_ += "<text" + attribute("x", x) + attribute("y", baseline) + attribute("font-size", f.size) +
           (f.bold ? " font-weight=\"600\"" : "") +
           (f.mono ? " font-family=\"'DejaVu Sans Mono',Menlo,Consolas,monospace\"" : "") +
           " fill=\"" + f.colour + "\" text-anchor=\"" + f.anchor + "\">" + escaped(words) +
           "</text>\n";
}

void Drawing::begin(std::string_view title) {
  body_ += "<g>" + (title.empty() ? "" : "<title>" + escaped(title) + "</title>") + '\n';
}

void Drawing::end() { body_ += "</g>\n"; }

std::string Drawing::finish(double width, double height, std::string_view title,
                            const std::string& background) const {
  const std::string size = number(width) + ' ' + number(height);
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\"" + attribute("width", width) +
         attribute("height", height) + " viewBox=\"0 0 " + size +
         "\" font-family=\"'Helvetica Neue',Arial,'DejaVu Sans',sans-serif\">\n<title>" +
         escaped(title) + "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"" + background +
         "\"/>\n" + body_ + "</svg>\n";
}

}  // namespace trainlaunch::svg
