#include "trusted.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <filesystem>

#include "base/file.h"

namespace trainlaunch {
namespace {

namespace fs = std::filesystem;

// Where an open file lies; empty when the kernel cannot say.
fs::path real_path(const Fd& file) {
  char real[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(file.get());
  const ssize_t n = readlink(link.c_str(), real, sizeof real);
  if (n <= 0 || n == static_cast<ssize_t>(sizeof real) || real[0] != '/') return {};
  return std::string(real, static_cast<size_t>(n));
}

// Why someone else than root could change which file `path` names; empty when no one can.
std::string who_else(const fs::path& path) {
  for (fs::path dir = path.parent_path();; dir = dir.parent_path()) {
    struct stat st {};
    if (lstat(dir.c_str(), &st) != 0)
      return "its directory " + dir.string() + " cannot be looked at";
    if (st.st_uid != 0) return "its directory " + dir.string() + " does not belong to root";
    // In a sticky directory only a file's owner can replace it. Links have no modes; what they lead
    // to is looked at as a part of the real path.
    if (!S_ISLNK(st.st_mode) && (st.st_mode & (S_IWGRP | S_IWOTH)) && !(st.st_mode & S_ISVTX))
      return "others than root can write its directory " + dir.string();
    if (dir == dir.root_path()) return "";
  }
}

std::string why_not(const Fd& file, const std::string& path, size_t limit, size_t& size) {
  struct stat st {};
  if (fstat(file.get(), &st) != 0 || !S_ISREG(st.st_mode)) return "is not a regular file";
  if (st.st_uid != 0) return "does not belong to root";
  if (st.st_mode & (S_IWGRP | S_IWOTH)) return "others than root can write it (chmod go-w)";
  size = static_cast<size_t>(st.st_size);
  if (size > limit) return "is too large (the limit is " + std::to_string(limit / 1024) + " KiB)";
  const fs::path real = real_path(file);
  if (real.empty()) return "cannot be found in /proc/self/fd, so that its owner is in doubt";
  if (std::string why = who_else(real); !why.empty()) return why;
  std::error_code ec;
  const fs::path named = fs::absolute(path, ec).lexically_normal();
  if (ec) return ec.message();
  return who_else(named);
}

}  // namespace

Result<std::string> read_trusted(const std::string& path, size_t limit, bool must_exist) {
  const auto bad = [&](const std::string& why) {
    return fail(path + ": " + why, exit_code::usage);
  };
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (!file) {
    if (errno == ENOENT && !must_exist) return std::string();
    if (errno == ELOOP) return bad("is a symbolic link; it must be the file itself");
    return fail_errno(path, exit_code::usage);
  }
  size_t size = 0;
  if (const std::string why = why_not(file, path, limit, size); !why.empty()) return bad(why);
  std::string text(size, '\0');
  const ssize_t got = read(file.get(), text.data(), size);
  if (got < 0) return bad("cannot be read");
  text.resize(static_cast<size_t>(got));
  return text;
}

}  // namespace trainlaunch
