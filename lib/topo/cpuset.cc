#include "topo/cpuset.h"

#include <algorithm>
#include <charconv>

namespace trainlaunch {
namespace {

// Takes a number off the front of `text`; false when there is none.
bool take_number(std::string_view& text, int& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || text.front() == '-') return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

}  // namespace

Result<std::vector<int>> parse_sequence(std::string_view text, int limit) {
  const std::string whole(text.substr(0, 80));
  const auto bad = [&](const char* why) {
    return fail("'" + whole + "': " + why + "; a list of numbers looks like 0-3,8",
                exit_code::usage);
  };
  std::vector<int> numbers;
  while (!text.empty()) {
    int first = 0;
    if (!take_number(text, first)) return bad("not a list");
    int last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      if (text.empty() || !take_number(text, last)) return bad("not a list");
    }
    if (last < first) return bad("a range runs backwards");
    if (last >= limit) return bad("a number is too large");
    if (numbers.size() + static_cast<size_t>(last - first) >= static_cast<size_t>(limit))
      return bad("too many numbers");
    for (int i = first; i <= last; ++i) numbers.push_back(i);
    if (text.empty()) break;
    if (!text.starts_with(',') || text.size() == 1) return bad("not a list");
    text.remove_prefix(1);
  }
  return numbers;
}

Result<std::vector<int>> parse_list(std::string_view text, int limit) {
  auto numbers = parse_sequence(text, limit);
  if (!numbers) return numbers;
  std::sort(numbers->begin(), numbers->end());
  numbers->erase(std::unique(numbers->begin(), numbers->end()), numbers->end());
  return numbers;
}

Result<CpuSet> parse_cpus(std::string_view text) {
  auto numbers = parse_list(text, max_cpu);
  if (!numbers) return forward(numbers);
  CpuSet cpus;
  for (int n : *numbers) cpus.set(static_cast<size_t>(n));
  return cpus;
}

std::string to_list(const std::vector<int>& ascending) {
  std::string out;
  for (size_t i = 0; i < ascending.size();) {
    size_t j = i;
    while (j + 1 < ascending.size() && ascending[j + 1] == ascending[j] + 1) ++j;
    if (!out.empty()) out += ',';
    out += std::to_string(ascending[i]);
    if (j > i) out += '-' + std::to_string(ascending[j]);
    i = j + 1;
  }
  return out;
}

std::string to_list(const CpuSet& cpus) {
  std::vector<int> numbers;
  for (size_t i = cpus._Find_first(); i < cpus.size(); i = cpus._Find_next(i))
    numbers.push_back(static_cast<int>(i));
  return to_list(numbers);
}

int first_of(const CpuSet& cpus) { return cpus.none() ? -1 : static_cast<int>(cpus._Find_first()); }

}  // namespace trainlaunch
