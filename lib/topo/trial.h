// Trying something that may crash.
#pragma once

#include <functional>
#include <string>

namespace trainlaunch {

// Runs `work` in a child process, silent, with bounded time and memory. Returns what `work` returns
// (empty: all is well; else what is wrong, in one line) or how the child died.
std::string try_in_child(const std::function<std::string()>& work);

}  // namespace trainlaunch
