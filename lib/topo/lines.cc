#include "topo/lines.h"

#include "base/text.h"

namespace trainlaunch {
namespace {

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
