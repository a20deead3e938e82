// The files the plugin reads, and whom it trusts. Nothing here runs with root's rights: the
// effective user is the job's.
#pragma once

#include <string_view>

#include "text.h"

namespace trainlaunch::plugin {

// What the plugin itself needs of gpu-bind.conf; the rest is the planner's.
struct Site {
  enum Bind { on_request, always, off } bind = on_request;
  bool strict = false;
  unsigned timeout_ms = 2000;
  bool there = false;  // without the file the defaults hold
};

// The administrator is root, or whoever runs the daemon (ownership.h).

// False if others than the administrator could change the file, or it cannot be read, is missing
// though it `must_exist`, or gives one of these keys no meaning.
bool read_site(const char* path, bool must_exist, Site& site, Reason& why);

// The same for its text; `path` is for `why`.
bool parse_site(std::string_view text, const char* path, Site& site, Reason& why);

// Whether only the administrator can change this program.
bool trusted_program(const char* path, Reason& why);

// A regular file that this process can open. Called as the user, in the rank's own place.
bool readable_file(const char* path);

// NCCL's configuration as this process sees it, inside the rank's container if there is one.
class NcclConf {
 public:
  // `file` replaces ~/.nccl.conf, as NCCL_CONF_FILE does; both may be null. A file that is missing,
  // no regular file, or longer than the buffer counts as far as it could be read.
  void read(const char* file, const char* home);
  bool sets(const char* name) const;

 private:
  void add(const char* path);
  char text_[32 * 1024];
  size_t size_ = 0;
};

}  // namespace trainlaunch::plugin
