#include "base/printable.h"

#include <algorithm>
#include <utility>

namespace trainlaunch {

namespace {

// Bytes of the character that begins so; 0: none does. C0, C1 and F5 to FF begin nothing valid.
size_t length_of(uint8_t first) {
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return 2;
  if (first >= 0xE0 && first <= 0xEF) return 3;
  if (first >= 0xF0 && first <= 0xF4) return 4;
  return 0;
}

// May `byte` be the second of a character? Excludes overlong forms, surrogates, what is beyond
// U+10FFFF (Unicode, table 3-7), and the control characters U+0080 to U+009F.
bool second_fits(uint8_t first, uint8_t byte) {
  switch (first) {
    case 0xC2:
      return byte >= 0xA0 && byte <= 0xBF;
    case 0xE0:
      return byte >= 0xA0 && byte <= 0xBF;
    case 0xED:
      return byte >= 0x80 && byte <= 0x9F;
    case 0xF0:
      return byte >= 0x90 && byte <= 0xBF;
    case 0xF4:
      return byte >= 0x80 && byte <= 0x8F;
    default:
      return byte >= 0x80 && byte <= 0xBF;
  }
}

}  // namespace

std::string Printable::put(uint8_t byte) {
  const char c = static_cast<char>(byte);
  if (!begun_.empty()) {
    const bool fits = begun_.size() == 1 ? second_fits(static_cast<uint8_t>(begun_[0]), byte)
                                         : byte >= 0x80 && byte <= 0xBF;
    if (!fits) {
      const std::string broken = finish();
      return broken + put(byte);
    }
    begun_ += c;
    if (begun_.size() < length_) return "";
    return std::exchange(begun_, "");
  }
  const size_t length = length_of(byte);
  if (length == 1) {
    const bool control = (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F;
    return control ? "?" : std::string(1, c);
  }
  if (length == 0) return "?";
  length_ = length;
  begun_ = c;
  return "";
}

std::string Printable::finish() { return std::exchange(begun_, "").empty() ? "" : "?"; }

std::string one_line(std::string_view text) {
  Printable printable;
  std::string line;
  for (const char c : text) line += printable.put(static_cast<uint8_t>(c));
  line += printable.finish();
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '\n' || c == '\t'; }, '?');
  return line;
}

}  // namespace trainlaunch
