#include "topo/lines.h"

namespace trainlaunch {
namespace {

constexpr std::string_view blanks = " \t\r\v\f";

// "\033[4m" and its like.
std::string without_escapes(std::string_view line) {
  std::string out;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\033') {
      out += line[i];
      continue;
    }
    if (i + 1 < line.size() && line[i + 1] == '[') ++i;
    while (i + 1 < line.size() && !(line[i + 1] >= '@' && line[i + 1] <= '~')) ++i;
    ++i;
  }
  return out;
}

}  // namespace

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(blanks);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> out;
  while (true) {
    const size_t first = text.find_first_not_of(blanks);
    if (first == text.npos) return out;
    text.remove_prefix(first);
    const size_t end = std::min(text.find_first_of(blanks), text.size());
    out.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

std::vector<Line> useful_lines(std::string_view text) {
  std::vector<Line> out;
  int number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string line = without_escapes(text.substr(0, end));
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    ++number;
    while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.pop_back();
    const std::string_view content = trim(line);
    if (!content.empty() && content.front() != '#') out.push_back({number, std::move(line)});
  }
  return out;
}

std::string shown(std::string_view word) {
  std::string out(word.substr(0, 40));
  for (char& c : out)
    if (c < ' ' || c > '~') c = '?';
  return '\'' + out + '\'';
}

tl::unexpected<Error> fail_at(const std::string& name, int line, const std::string& what) {
  return fail(name + ':' + std::to_string(line) + ": " + what, exit_code::usage);
}

}  // namespace trainlaunch
