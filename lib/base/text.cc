#include "base/text.h"

#include <algorithm>

namespace trainlaunch {
namespace {

constexpr std::string_view blanks = " \t\r\v\f";

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

}  // namespace trainlaunch
