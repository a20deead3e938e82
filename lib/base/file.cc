#include "base/file.h"

#include <unistd.h>

#include <cerrno>

namespace trainlaunch {

void Fd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

Status Fd::close(const std::string& what) {
  if (::close(release()) != 0) return fail_errno(what);
  return {};
}

Status read_fully(int fd, void* to, size_t size, uint64_t offset, const std::string& what) {
  auto* p = static_cast<std::byte*>(to);
  while (size > 0) {
    const ssize_t n = pread(fd, p, size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(what);
    if (n == 0)
      return fail(what + ": the file ends at byte " + std::to_string(offset) + ", " +
                  std::to_string(size) + " bytes too early");
    p += n;
    size -= static_cast<size_t>(n);
    offset += static_cast<uint64_t>(n);
  }
  return {};
}

Status write_fully(int fd, const void* from, size_t size, const std::string& what) {
  auto* p = static_cast<const std::byte*>(from);
  while (size > 0) {
    const ssize_t n = write(fd, p, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(what);
    p += n;
    size -= static_cast<size_t>(n);
  }
  return {};
}

}  // namespace trainlaunch
