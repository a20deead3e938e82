#include "text_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "base/file.h"
#include "base/time.h"

namespace trainlaunch {
namespace {

constexpr size_t limit = size_t{512} << 20, piece = 64 * 1024;
// A FIFO in the file system may have no writer yet, or never.
constexpr int writer_wait_s = 5;

// Up to `piece` bytes more; the number of them, or less than 0 as read(2).
ssize_t read_piece(int fd, std::string& text) {
  const size_t size = text.size();
  text.resize(size + piece);
  ssize_t n;
  do n = read(fd, text.data() + size, piece);
  while (n < 0 && errno == EINTR);
  const int error = errno;
  text.resize(size + static_cast<size_t>(n < 0 ? 0 : n));
  errno = error;
  return n;
}

// Waits until a FIFO has a writer; what it has written already is in `text`.
Status await_writer(int fd, const std::string& path, std::string& text) {
  const Deadline deadline = Deadline::in(Seconds(writer_wait_s));
  for (;;) {
    const ssize_t n = read_piece(fd, text);
    if (n > 0 || (n < 0 && errno == EAGAIN)) return {};
    if (n < 0) return fail_errno(path, exit_code::usage);
    if (deadline.over())
      return fail(path + ": nobody has opened this pipe to write within " +
                      std::to_string(writer_wait_s) + " s",
                  exit_code::usage);
    pollfd readable{fd, POLLIN, 0};
    // A writer who has come and gone without a word.
    if (poll(&readable, 1, 20) > 0 && !(readable.revents & POLLIN)) return {};
  }
}

// The shell's <(command) is a pipe without a name: it has, or has had, a writer.
bool has_name(int fd) {
  struct statfs fs {};
  return fstatfs(fd, &fs) == 0 && fs.f_type != PIPEFS_MAGIC;
}

Result<Fd> open_text(const std::string& path, std::string& text) {
  Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat st {};
  if (!file || fstat(file.get(), &st) != 0) return fail_errno(path, exit_code::usage);
  const auto bad = [&](const char* why) { return fail(path + ": " + why, exit_code::usage); };
  if (S_ISDIR(st.st_mode)) return bad("is a folder; name a file in it");
  if (S_ISREG(st.st_mode)) return file;
  if (!S_ISFIFO(st.st_mode) && !isatty(file.get()))
    return bad("is a device; name a file, or - for standard input");
  if (S_ISFIFO(st.st_mode) && has_name(file.get()))
    if (auto s = await_writer(file.get(), path, text); !s) return forward(s);
  fcntl(file.get(), F_SETFL, fcntl(file.get(), F_GETFL) & ~O_NONBLOCK);
  return file;
}

}  // namespace

Result<std::string> read_text(const std::string& path) {
  std::string text;
  Fd file;
  if (path != "-") {
    auto opened = open_text(path, text);
    if (!opened) return forward(opened);
    file = std::move(*opened);
  }
  const int fd = file ? file.get() : STDIN_FILENO;
  for (;;) {
    const ssize_t n = read_piece(fd, text);
    // Some files of /proc do not end, and say nothing until something happens.
    if (n < 0 && errno == EAGAIN)
      return fail(path + ": has nothing to read now, and no end", exit_code::usage);
    if (n < 0) return fail_errno(path, exit_code::usage);
    if (n == 0) return text;
    if (text.size() > limit)
      return fail(path + ": is too large (the limit is 512 MiB)", exit_code::usage);
  }
}

}  // namespace trainlaunch
