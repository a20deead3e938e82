// Everything about this process that a plugin could change and must not, as the kernel shows it.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace harness {

// What is looked at ("fd 7", "signal 13", "umask") and its value.
using Process = std::map<std::string, std::string>;

Process look();

// "umask: 0022 -> 0077", one for each difference.
std::vector<std::string> differences(const Process& before, const Process& after);

}  // namespace harness
