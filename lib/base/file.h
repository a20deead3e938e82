// Files by descriptor: closed with the object, read and written completely or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/result.h"

namespace trainlaunch {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { reset(); }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1);
  // close(2) with its error: where quotas and network file systems report a failed write.
  Status close(const std::string& what);

 private:
  int fd_ = -1;
};

// Exactly `size` bytes at `offset`, whatever signals and short reads do; the file's end is an
// error.
Status read_fully(int fd, void* to, size_t size, uint64_t offset, const std::string& what);
// Exactly `size` bytes at the file's position.
Status write_fully(int fd, const void* from, size_t size, const std::string& what);

}  // namespace trainlaunch
