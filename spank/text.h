// Text without the heap: what the plugin needs of strings, in fixed buffers. Everything that is
// read or printed inside slurmstepd passes through here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace trainlaunch::plugin {

// A string of at most N-1 characters; what does not fit is cut, and the string remembers it.
template <size_t N>
class Fixed {
 public:
  Fixed& operator+=(std::string_view s) {
    const size_t room = N - 1 - size_;
    if (s.size() > room) cut_ = true;
    const size_t n = s.size() < room ? s.size() : room;
    memcpy(data_ + size_, s.data(), n);
    size_ += n;
    data_[size_] = '\0';
    return *this;
  }
  Fixed& operator+=(long number) {
    char digits[24];
    snprintf(digits, sizeof digits, "%ld", number);
    return *this += std::string_view(digits);
  }
  // The parts one after another, in place of what was there.
  template <class... Part>
  Fixed& set(const Part&... parts) {
    clear();
    ((*this += parts), ...);
    return *this;
  }
  void clear() { *this = Fixed(); }
  bool empty() const { return size_ == 0; }
  bool cut() const { return cut_; }
  const char* c_str() const { return data_; }
  std::string_view view() const { return {data_, size_}; }

 private:
  char data_[N] = {};
  size_t size_ = 0;
  bool cut_ = false;
};

// Why something was not done: one line for people.
using Reason = Fixed<512>;

inline bool starts_with(std::string_view s, std::string_view prefix) {
  return s.size() >= prefix.size() && memcmp(s.data(), prefix.data(), prefix.size()) == 0;
}

// Takes `prefix` off the front of `s` if it stands there.
inline bool take(std::string_view& s, std::string_view prefix) {
  if (!starts_with(s, prefix)) return false;
  s.remove_prefix(prefix.size());
  return true;
}

// The part of `rest` before the next `separator`, or all of it; both leave `rest`. False at the
// end.
inline bool next_part(std::string_view& rest, char separator, std::string_view& part) {
  if (rest.empty()) return false;
  const size_t at = rest.find(separator);
  const size_t n = at == std::string_view::npos ? rest.size() : at;
  part = std::string_view(rest.data(), n);
  rest.remove_prefix(at == std::string_view::npos ? n : n + 1);
  return true;
}

inline std::string_view trim(std::string_view s) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!s.empty() && blank(s.front())) s.remove_prefix(1);
  while (!s.empty() && blank(s.back())) s.remove_suffix(1);
  return s;
}

// Decimal digits and nothing else, at most `max`.
inline bool parse_number(std::string_view s, uint32_t max, uint32_t& value) {
  if (s.empty()) return false;
  uint64_t v = 0;
  for (const char c : s) {
    if (c < '0' || c > '9') return false;
    v = v * 10 + static_cast<unsigned>(c - '0');
    if (v > max) return false;
  }
  value = static_cast<uint32_t>(v);
  return true;
}

inline bool printable(char c) { return c >= ' ' && c <= '~'; }

inline bool all_printable(std::string_view s) {
  for (const char c : s)
    if (!printable(c)) return false;
  return true;
}

}  // namespace trainlaunch::plugin
