// Files that only root can change.
#pragma once

#include <string>

#include "base/result.h"

namespace trainlaunch {

// The text of a file that steers what every user's job gets. It must be a regular file of root's,
// which nobody else can write or replace: no symbolic link, and above it, both as named and where
// it really lies, only directories (and links) of root's, sticky or not writable by others. Errors
// are usage errors. A missing file is empty text, or an error if it `must_exist`.
Result<std::string> read_trusted(const std::string& path, size_t limit, bool must_exist);

}  // namespace trainlaunch
