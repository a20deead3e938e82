// Whole text files, as the command line names them.
#pragma once

#include <string>

#include "base/result.h"

namespace trainlaunch {

// The content of `path`, or of standard input where that is "-". Errors, with the name, are usage
// errors; more than 512 MiB is one.
Result<std::string> read_text(const std::string& path);

}  // namespace trainlaunch
