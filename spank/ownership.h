// Who could change a file that steers every user's job: asked by the plugin and by the planner.
#pragma once

#include <sys/types.h>

#include "text.h"

namespace trainlaunch::plugin {

// Whether only root and `admin` can change which bytes the absolute `path`, open as `fd`, names. It
// must be a regular file of theirs which nobody else can write, and above it, both as named and
// where it really lies, there may only be directories and links of theirs, the directories sticky
// or writable by nobody else. Else `why` says what is wrong.
bool only_admin_changes(int fd, const char* path, uid_t admin, Reason& why) noexcept;

}  // namespace trainlaunch::plugin
