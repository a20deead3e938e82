// Files that only root can change.
#pragma once

#include <string>

#include "base/result.h"

namespace trainlaunch {

// The text of a file that steers what every user's job gets: no symbolic link, and one that only
// root can change (ownership.h). Errors are usage errors. A missing file is empty text, or an error
// if it `must_exist`.
Result<std::string> read_trusted(const std::string& path, size_t limit, bool must_exist);

}  // namespace trainlaunch
