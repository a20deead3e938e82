#include "topo/trial.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "base/file.h"

namespace trainlaunch {
namespace {

constexpr unsigned max_seconds = 10;
constexpr rlim_t max_memory = rlim_t{2} << 30;
constexpr size_t max_answer = 64 << 20;

// The first character of what a child says.
constexpr char said_answer = 'a', said_error = 'e';

[[noreturn]] void child(const std::function<Result<std::string>()>& work, int answer) {
  for (int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM}) {
    struct sigaction plain {};
    plain.sa_handler = SIG_DFL;
    sigaction(signal, &plain, nullptr);
  }
  alarm(max_seconds);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
#ifndef __SANITIZE_ADDRESS__  // which reserves terabytes
  const rlimit memory{max_memory, max_memory};
  setrlimit(RLIMIT_AS, &memory);
#endif
  if (const int null = open("/dev/null", O_WRONLY); null >= 0) {
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
  }
  const Result<std::string> result = work();
  const std::string said =
      result ? said_answer + *result : said_error + result.error().what.substr(0, 1000);
  _exit(write_fully(answer, said.data(), said.size(), "pipe") ? 0 : 1);
}

// Until the other end is closed.
std::string read_all(int fd) {
  std::string all;
  char text[65536];
  while (all.size() <= max_answer) {
    const ssize_t n = read(fd, text, sizeof text);
    if (n > 0) all.append(text, static_cast<size_t>(n));
    if (n == 0 || (n < 0 && errno != EINTR)) break;
  }
  return all;
}

}  // namespace

Result<std::string> ask_child(const std::function<Result<std::string>()>& work) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return fail("no pipe to try it through");
  Fd from(ends[0]), to(ends[1]);
  const pid_t pid = fork();
  if (pid == 0) child(work, to.get());
  to.reset();
  if (pid < 0) return fail("no process to try it in");
  std::string said = read_all(from.get());
  from.reset();
  int status = 0;
  while (waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return fail("the process that tried it is lost");
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) return fail("takes too long");
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || said.empty())
    return fail("hwloc breaks down on it");
  if (said.front() == said_error) return fail(said.substr(1));
  said.erase(0, 1);
  return said;
}

}  // namespace trainlaunch
