#include "env/hosts.h"

#include <algorithm>
#include <charconv>

namespace trainlaunch {
namespace {

bool is_host_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_' || c == ':';
}

bool number(std::string_view s, unsigned& n) {
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), n);
  return !s.empty() && error == std::errc() && end == s.data() + s.size();
}

// One item of a bracket, "3" or "01-03"; numbers have at least `width` digits.
struct Range {
  unsigned first = 0, last = 0;
  size_t width = 0;
};
bool parse_range(std::string_view item, Range& range) {
  const size_t dash = std::min(item.find('-'), item.size());
  const std::string_view low = item.substr(0, dash);
  const std::string_view high = dash < item.size() ? item.substr(dash + 1) : low;
  range.width = low.size();
  return number(low, range.first) && number(high, range.last) && range.first <= range.last;
}

// "01-03,7" -> "01", "02", "03", "7": numbers keep their width.
bool expand_numbers(std::string_view text, size_t limit, std::vector<std::string>& out) {
  while (true) {
    const size_t comma = std::min(text.find(','), text.size());
    Range range;
    if (!parse_range(text.substr(0, comma), range)) return false;
    for (unsigned i = range.first; out.size() < limit; ++i) {
      std::string digits = std::to_string(i);
      if (digits.size() < range.width) digits.insert(0, range.width - digits.size(), '0');
      out.push_back(std::move(digits));
      if (i == range.last) break;
    }
    if (comma == text.size()) return true;
    text.remove_prefix(comma + 1);
  }
}

// One entry, which may hold several brackets: prefixes so far x the numbers of the next bracket.
bool expand_entry(std::string_view entry, size_t limit, std::vector<std::string>& out) {
  std::vector<std::string> names{""};
  while (!entry.empty()) {
    const size_t open = std::min(entry.find('['), entry.size());
    for (char c : entry.substr(0, open))
      if (!is_host_char(c)) return false;
    for (std::string& n : names) n += entry.substr(0, open);
    entry.remove_prefix(open);
    if (entry.empty()) break;
    const size_t close = entry.find(']');
    if (close == std::string_view::npos) return false;
    std::vector<std::string> numbers;
    if (!expand_numbers(entry.substr(1, close - 1), limit, numbers)) return false;
    entry.remove_prefix(close + 1);
    std::vector<std::string> longer;
    for (const std::string& n : names)
      for (const std::string& number : numbers)
        if (longer.size() < limit) longer.push_back(n + number);
    names = std::move(longer);
  }
  for (std::string& n : names)
    if (out.size() < limit && !n.empty()) out.push_back(std::move(n));
  return true;
}

// Is `digits` what Slurm would write for a number of the bracket's `ranges`?
bool among(std::string_view ranges, std::string_view digits) {
  unsigned n = 0;
  if (!number(digits, n)) return false;
  while (!ranges.empty()) {
    const size_t comma = std::min(ranges.find(','), ranges.size());
    Range r;
    if (!parse_range(ranges.substr(0, comma), r)) return false;
    const size_t size = std::max(r.width, std::to_string(n).size());
    if (n >= r.first && n <= r.last && digits.size() == size) return true;
    ranges.remove_prefix(std::min(comma + 1, ranges.size()));
  }
  return false;
}

bool entry_matches(std::string_view entry, std::string_view host) {
  const size_t open = std::min(entry.find('['), entry.size());
  if (host.substr(0, open) != entry.substr(0, open)) return false;
  entry.remove_prefix(open);
  host.remove_prefix(open);
  if (entry.empty()) return host.empty();
  const size_t close = entry.find(']');
  if (close == std::string_view::npos) return false;
  const std::string_view ranges = entry.substr(1, close - 1), rest = entry.substr(close + 1);
  // What follows may begin with a digit too.
  for (size_t n = 1; n <= host.size(); ++n)
    if (among(ranges, host.substr(0, n)) && entry_matches(rest, host.substr(n))) return true;
  return false;
}

// The end of the entry that `list` begins with: commas inside brackets belong to it.
size_t entry_end(std::string_view list) {
  size_t end = 0;
  for (int depth = 0; end < list.size() && (depth > 0 || list[end] != ','); ++end)
    depth += list[end] == '[' ? 1 : list[end] == ']' ? -1 : 0;
  return end;
}

}  // namespace

Result<std::vector<std::string>> expand_hosts(std::string_view list, size_t limit) {
  std::vector<std::string> out;
  const std::string whole(list.substr(0, 80));
  while (!list.empty()) {
    const size_t end = entry_end(list);
    if (!expand_entry(list.substr(0, end), limit, out))
      return fail("'" + whole + "': not a host list such as n[1-4],login", exit_code::usage);
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return out;
}

bool hosts_contain(std::string_view list, std::string_view host) {
  if (!expand_hosts(list, 0)) return false;
  while (!list.empty()) {
    const size_t end = entry_end(list);
    if (!host.empty() && entry_matches(list.substr(0, end), host)) return true;
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return false;
}

}  // namespace trainlaunch
