// The node's topology cache: a snapshot of the machine (topo/snapshot.h) that root has written into
// a directory of root's, for the planners of all users. It is used only if its key is that of the
// machine as it is now.
#pragma once

#include <optional>
#include <string>

#include "topo/topo.h"

namespace trainlaunch {

// Looks at the machine with the rights of nobody, and puts what it finds into `directory`, which is
// made if it is not there. For root only.
Status write_cache(const std::string& directory);

// The machine from the cache; none if there is no cache, or not one to be used: then `why` says so.
std::optional<Machine> read_cache(const std::string& directory, std::string& why);

}  // namespace trainlaunch
