#include "text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/file.h"

namespace trainlaunch {

Result<std::string> read_text(const std::string& path) {
  constexpr size_t limit = size_t{512} << 20, piece = 64 * 1024;
  Fd file;
  if (path != "-") {
    file = Fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) return fail_errno(path, exit_code::usage);
  }
  const int fd = file ? file.get() : STDIN_FILENO;
  std::string text;
  for (;;) {
    const size_t size = text.size();
    text.resize(size + piece);
    const ssize_t n = read(fd, text.data() + size, piece);
    if (n < 0 && errno != EINTR) return fail_errno(path, exit_code::usage);
    text.resize(size + static_cast<size_t>(n < 0 ? 0 : n));
    if (n == 0) return text;
    if (text.size() > limit)
      return fail(path + ": is too large (the limit is 512 MiB)", exit_code::usage);
  }
}

}  // namespace trainlaunch
