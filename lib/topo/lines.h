// The lines of a pasted text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace trainlaunch {

struct Line {
  int number = 0;  // from 1
  std::string text;
};

// Without comments (#), empty lines, carriage returns and the escape sequences that colour or
// underline a terminal.
std::vector<Line> useful_lines(std::string_view text);

// What is shown of a wrong word: short, printable.
std::string shown(std::string_view word);

// "name:line: what", with exit_code::usage.
tl::unexpected<Error> fail_at(const std::string& name, int line, const std::string& what);

}  // namespace trainlaunch
