#include "trusted.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/file.h"
#include "ownership.h"

namespace trainlaunch {

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
  std::error_code ec;
  const std::string named = std::filesystem::absolute(path, ec);
  if (ec) return bad(ec.message());
  plugin::Reason why;
  constexpr uid_t root = 0;
  if (!plugin::only_admin_changes(file.get(), named.c_str(), root, why))
    return fail(why.c_str(), exit_code::usage);
  struct stat st {};
  if (fstat(file.get(), &st) != 0) return fail_errno(path, exit_code::usage);
  const auto size = static_cast<size_t>(st.st_size);
  if (size > limit)
    return bad("is too large (the limit is " + std::to_string(limit / 1024) + " KiB)");
  std::string text(size, '\0');
  const ssize_t got = read(file.get(), text.data(), size);
  if (got < 0) return bad("cannot be read");
  text.resize(static_cast<size_t>(got));
  return text;
}

}  // namespace trainlaunch
