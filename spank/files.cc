#include "files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <climits>

#include "ownership.h"

namespace trainlaunch::plugin {
namespace {

// O_NONBLOCK: a FIFO in a file's place must not hang slurmstepd.
constexpr int read_flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;

class File {
 public:
  File(const char* path, int flags) : fd_(open(path, flags)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  explicit operator bool() const { return fd_ >= 0; }
  int fd() const { return fd_; }

 private:
  int fd_;
};

// Up to `size` bytes of a regular file, or -1.
ssize_t read_regular(int fd, char* data, size_t size) {
  struct stat st;
  if (fstat(fd, &st) != 0) return -1;
  if (!S_ISREG(st.st_mode)) {
    errno = EINVAL;
    return -1;
  }
  size_t used = 0;
  while (used < size) {
    const ssize_t n = read(fd, data + used, size - used);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -1;
    if (n == 0) break;
    used += static_cast<size_t>(n);
  }
  return static_cast<ssize_t>(used);
}

// Null if `value` is one for `key`, else those that are. The planner judges all other keys.
const char* read_key(std::string_view key, std::string_view value, Site& site) {
  if (key == "bind") {
    if (value == "on-request")
      site.bind = Site::on_request;
    else if (value == "always")
      site.bind = Site::always;
    else if (value == "off")
      site.bind = Site::off;
    else
      return "on-request, always or off";
  } else if (key == "strict") {
    if (value != "yes" && value != "no") return "yes or no";
    site.strict = value == "yes";
  } else if (key == "timeout-ms") {
    uint32_t ms = 0;
    if (!parse_number(value, 60000, ms) || ms < 50) return "milliseconds, 50 to 60000";
    site.timeout_ms = ms;
  }
  return nullptr;
}

// The keys that the plugin reads; each may be given once.
constexpr std::string_view site_keys[] = {"bind", "strict", "timeout-ms"};

bool seen_before(std::string_view key, bool (&seen)[3]) {
  for (size_t i = 0; i < 3; ++i) {
    if (key != site_keys[i]) continue;
    const bool before = seen[i];
    seen[i] = true;
    return before;
  }
  return false;
}

}  // namespace

bool parse_site(std::string_view text, const char* path, Site& site, Reason& why) {
  bool seen[3] = {};
  std::string_view rest = text, line;
  for (long number = 1; next_part(rest, '\n', line); ++number) {
    std::string_view comment = line;
    if (!next_part(comment, '#', line)) continue;
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view key = trim({line.data(), equals});
    const std::string_view value = trim({line.data() + equals + 1, line.size() - equals - 1});
    if (seen_before(key, seen)) {
      why.set(path, ":", number, ": ", key, ": given before");
      return false;
    }
    const char* use = read_key(key, value, site);
    if (!use) continue;
    why.set(path, ":", number, ": ", key, ": use ", use);
    return false;
  }
  return true;
}

bool read_site(const char* path, bool must_exist, Site& site, Reason& why) {
  File file(path, read_flags | O_NOFOLLOW);
  if (!file) {
    if (errno == ENOENT && !must_exist) return true;
    why.set(path, ": ", errno == ELOOP ? "is a symbolic link" : strerrordesc_np(errno),
            "; it must be a file that every user can read");
    return false;
  }
  if (!only_admin_changes(file.fd(), path, getuid(), why)) return false;
  char text[32 * 1024];
  const ssize_t n = read_regular(file.fd(), text, sizeof text);
  if (n < 0 || static_cast<size_t>(n) == sizeof text) {
    why.set(path, n < 0 ? ": cannot read it" : ": longer than 32 KiB");
    return false;
  }

  site.there = true;
  return parse_site({text, static_cast<size_t>(n)}, path, site, why);
}

bool trusted_program(const char* path, Reason& why) {
  if (path[0] != '/') {
    why.set(path, ": the planner's path must be absolute");
    return false;
  }
  File file(path, O_PATH | O_CLOEXEC);
  if (!file) {
    why.set(path, ": ", strerrordesc_np(errno));
    return false;
  }
  return only_admin_changes(file.fd(), path, getuid(), why);
}

bool readable_file(const char* path) {
  File file(path, read_flags);
  struct stat st;
  return file && fstat(file.fd(), &st) == 0 && S_ISREG(st.st_mode);
}

void NcclConf::add(const char* path) {
  File file(path, read_flags);
  if (!file || size_ + 1 >= sizeof text_) return;
  const ssize_t n = read_regular(file.fd(), text_ + size_, sizeof text_ - size_ - 1);
  if (n <= 0) return;
  size_ += static_cast<size_t>(n);
  text_[size_++] = '\n';
}

void NcclConf::read(const char* file, const char* home) {
  size_ = 0;
  if (file) {
    add(file);
  } else if (home) {
    Fixed<PATH_MAX> path;
    path.set(home, "/.nccl.conf");
    if (!path.cut()) add(path.c_str());
  }
  add("/etc/nccl.conf");
}

// As NCCL reads it: a line begins with the name, blanks count, # comments the line out.
bool NcclConf::sets(const char* name) const {
  std::string_view rest(text_, size_), line;
  while (next_part(rest, '\n', line))
    if (take(line, name) && starts_with(line, "=")) return true;
  return false;
}

}  // namespace trainlaunch::plugin
