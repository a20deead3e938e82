// Runs the planner as the job's user: fork, give up every right, exec, read the answer in time.
// The caller is slurmstepd: real uid root, effective uid the user's, threads running. What happens
// in the child between fork and exec uses neither malloc nor the name service, and whatever the
// planner does, the call returns soon after its deadline.
#pragma once

#include <sys/types.h>

#include "text.h"

namespace trainlaunch::plugin {

struct User {
  uid_t uid;
  gid_t gid;
};

struct Planner {
  const char* path;   // absolute
  char* const* argv;  // null-terminated, argv[0] included
  User user;
  unsigned timeout_ms;
};

// Fills `out` with what it wrote to standard output; `used` is at most `size`. True if it ended by
// itself with exit code 0, or with an "error" line that says why not; else `why`.
bool run_planner(const Planner& planner, char* out, size_t size, size_t& used, Reason& why);

// Starts a program of root's, with the daemon's own identity, apart from the daemon: no child of
// its, in no session of its, with nothing of its environment and files. What becomes of it nobody
// asks.
bool start_apart(const char* path, char* const* argv, Reason& why);

}  // namespace trainlaunch::plugin
