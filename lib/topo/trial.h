// Trying something that may crash.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"

namespace trainlaunch {

// Runs `work` in a child process, silent, with bounded time and memory. Returns what `work`
// returns, an error's text included, or how the child died.
Result<std::string> ask_child(const std::function<Result<std::string>()>& work);

}  // namespace trainlaunch
