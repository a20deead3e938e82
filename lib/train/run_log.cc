#include "train/run_log.h"

#include <fcntl.h>

#include <array>
#include <ctime>

#include "base/printable.h"

namespace trainlaunch {

Result<RunLog> RunLog::open(const std::string& run) {
  const std::string path = run + "/run.log";
  RunLog log;
  // Without blocking: a pipe of that name that nobody reads is an error, not a wait without end.
  log.fd_.reset(::open(path.c_str(),
                       O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
  if (!log.fd_) return fail_errno("cannot open " + path);
  return log;
}

void RunLog::add(const std::string& line) const {
  if (!fd_) return;
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  std::array<char, 32> stamp{};
  if (gmtime_r(&now, &utc)) std::strftime(stamp.data(), stamp.size(), "%Y-%m-%dT%H:%M:%SZ ", &utc);
  const std::string text = stamp.data() + one_line(line) + "\n";
  (void)write_fully(fd_.get(), text.data(), text.size(), "run.log");
}

}  // namespace trainlaunch
