// A drawing in the making: the few shapes that a picture of a machine needs.
//
// The result is one self-contained SVG file in ASCII: no script, no style sheet, no reference to
// anything outside. All words pass through here: markup characters are escaped, control characters
// dropped, and what is not ASCII becomes a question mark.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trainlaunch::svg {

struct Box {
  double x = 0, y = 0, w = 0, h = 0;
  double right() const { return x + w; }
  double bottom() const { return y + h; }
  double middle() const { return y + h / 2; }
};

struct Font {
  double size = 12;
  bool bold = false;
  bool mono = false;  // digits line up, and the width is known
  const char* colour = "#1f2933";
  const char* anchor = "start";  // "middle", "end"
};

// Width in pixels, on the safe side: the font is the reader's.
double width_of(std::string_view words, const Font& font);
// The words, or as many of their characters as fit, and dots.
std::string fit(std::string_view words, double width, const Font& font);
// Broken between words into lines that fit.
std::vector<std::string> wrap(std::string_view words, double width, const Font& font);

class Drawing {
 public:
  // `look` is attributes of the shape: a literal of ours, never words from outside.
  void rect(const Box& box, double radius, const std::string& look);
  void circle(double x, double y, double r, const std::string& look);
  // From left to right, leaving and arriving level.
  void curve(double x1, double y1, double x2, double y2, const std::string& look);
  void path(const std::string& data, const std::string& look);
  void text(double x, double baseline, const Font& font, std::string_view words);

  // Shapes until the matching end belong together; `title` is shown by browsers on hovering.
  void begin(std::string_view title);
  void end();

  std::string finish(double width, double height, std::string_view title,
                     const std::string& background) const;

 private:
  std::string body_;
};

std::string number(double value);  // "12", "12.5"

}  // namespace trainlaunch::svg
