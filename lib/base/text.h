// Words of a line.
#pragma once

#include <string_view>
#include <vector>

namespace trainlaunch {

// Blanks are spaces, tabs, carriage returns, and vertical and form feeds.
std::string_view trim(std::string_view text);
std::vector<std::string_view> words(std::string_view text);

}  // namespace trainlaunch
