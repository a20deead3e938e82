// Bytes from anywhere, made fit for a terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace trainlaunch {

// Takes any bytes, one at a time, and gives back UTF-8 without control characters other than line
// feed and tab: whatever else comes is a question mark. A character is given back when its last
// byte has come.
class Printable {
 public:
  std::string put(uint8_t byte);
  std::string finish();  // what is left of an unfinished character

 private:
  std::string begun_;  // the first bytes of a character
  size_t length_ = 0;  // that it will have
};

// A message for people that names what users or files gave: UTF-8 on one line, a question mark for
// all else.
std::string one_line(std::string_view text);

}  // namespace trainlaunch
