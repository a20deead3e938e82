#include "table.h"

#include <algorithm>

#include "base/text.h"
#include "report_parts.h"

namespace trainlaunch {
namespace {

// A last column that has less room than this is not broken: it would be a tower of scraps.
constexpr size_t least_room = 16;

}  // namespace

std::string painted(std::string_view text, Look look, const TextStyle& style) {
  // Bold, and the terminal's own colours, which its user has made readable.
  static constexpr const char* codes[] = {"", "1", "32", "33", "31", "2", "1;33"};
  const char* code = codes[static_cast<size_t>(look)];
  if (!style.colour || !*code || text.empty()) return std::string(text);
  return std::string("\x1b[") + code + 'm' + std::string(text) + "\x1b[0m";
}

Table::Table(const TextStyle& style, const std::vector<std::string>& head, size_t gap)
    : style_(style), gap_(gap) {
  std::vector<Cell> cells;
  for (const std::string& h : head) cells.emplace_back(h, Look::heading);
  row(std::move(cells));
}

std::string Table::text() const {
  std::vector<size_t> width(rows_.front().size());
  for (const auto& r : rows_)
    for (size_t c = 0; c < r.size(); ++c) width[c] = std::max(width[c], plain(r[c].text).size());
  size_t before = 0;
  for (size_t c = 0; c + 1 < width.size(); ++c) before += width[c] + gap_;
  const size_t room =
      style_.width > before + least_room ? style_.width - before : std::string::npos;

  std::string out;
  for (const auto& r : rows_) {
    std::string line;
    size_t blanks = 0;  // due before the next cell that is not empty
    for (size_t c = 0; c < r.size(); ++c) {
      std::vector<std::string> parts{plain(r[c].text)};
      if (c + 1 == r.size()) parts = broken(parts.front(), room);
      for (size_t i = 0; i < parts.size(); ++i) {
        if (i > 0) {
          line += '\n';
          blanks = before;
        }
        if (!parts[i].empty()) {
          line += std::string(blanks, ' ') + painted(parts[i], r[c].look, style_);
          blanks = 0;
        }
      }
      blanks += width[c] - std::min(width[c], parts.back().size()) + gap_;
    }
    out += line + '\n';
  }
  return out;
}

std::vector<std::string> broken(std::string_view text, size_t width) {
  std::vector<std::string> lines(1);
  // Appends what may stand on this line, else begins the next one.
  const auto put = [&](const std::string& piece, bool blank) {
    const size_t needed = piece.size() + (blank && !lines.back().empty() ? 1 : 0);
    if (!lines.back().empty() && lines.back().size() + needed > width) lines.emplace_back();
    if (blank && !lines.back().empty()) lines.back() += ' ';
    lines.back() += piece;
  };
  const std::string shown = plain(text);
  for (const std::string_view word : words(shown)) {
    if (word.size() <= width) {
      put(std::string(word), true);
      continue;
    }
    for (size_t at = 0; at < word.size();) {
      const size_t comma = word.find(',', at);
      const size_t end = comma == std::string::npos ? word.size() : comma + 1;
      put(std::string(word.substr(at, end - at)), at == 0);
      at = end;
    }
  }
  return lines;
}

std::string paragraph(std::string_view text, size_t first, size_t rest, const TextStyle& style) {
  const size_t indent = std::max(first, rest);
  const auto lines =
      broken(text, style.width > indent + least_room ? style.width - indent : std::string::npos);
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i)
    out += std::string(i == 0 ? first : rest, ' ') + lines[i] + '\n';
  return out;
}

}  // namespace trainlaunch
