// Whole text files, as the command line names them.
#pragma once

#include <string>

#include "base/result.h"

namespace trainlaunch {

// The content of `path`, or of standard input where that is "-". Errors, with the name, are usage
// errors. More than 512 MiB is one; so are a device that is no terminal, a FIFO that nobody opens
// to write within 5 s, and a file that would have to be waited for (/proc/kmsg). Whoever has a pipe
// open to write may take any time.
Result<std::string> read_text(const std::string& path);

}  // namespace trainlaunch
