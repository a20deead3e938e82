// Text in columns and paragraphs for a terminal or a pipe. ASCII only: one byte is one column.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainlaunch {

struct TextStyle {
  bool colour = false;  // escape sequences of a terminal
  size_t width = 80;    // that lines stay within where they can be broken
};

enum class Look : uint8_t { plain, heading, good, fair, bad, dim, warning };
// With the escape sequences of the look, if the style has colour.
std::string painted(std::string_view text, Look look, const TextStyle& style);

struct Cell {
  Cell(std::string words, Look how = Look::plain) : text(std::move(words)), look(how) {}
  Cell(const char* words, Look how = Look::plain) : text(words), look(how) {}
  std::string text;
  Look look;
};

// Rows of cells in columns as wide as their widest cell. The last column is broken into lines to
// keep within the width.
class Table {
 public:
  Table(const TextStyle& style, const std::vector<std::string>& head, size_t gap = 2);
  void row(std::vector<Cell> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  TextStyle style_;
  size_t gap_;
  std::vector<std::vector<Cell>> rows_;
};

// Broken between words, and words that are longer than a line after commas.
std::vector<std::string> broken(std::string_view text, size_t width);
// One paragraph: the first line begins after `first` blanks, the others after `rest`.
std::string paragraph(std::string_view text, size_t first, size_t rest, const TextStyle& style);

}  // namespace trainlaunch
