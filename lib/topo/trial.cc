#include "topo/trial.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace trainlaunch {
namespace {

constexpr unsigned max_seconds = 10;
constexpr rlim_t max_memory = rlim_t{2} << 30;

[[noreturn]] void child(const std::function<std::string()>& work, int answer) {
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
  const std::string wrong = work();
  const ssize_t written = write(answer, wrong.data(), wrong.size());
  _exit(written == static_cast<ssize_t>(wrong.size()) ? 0 : 1);
}

}  // namespace

std::string try_in_child(const std::function<std::string()>& work) {
  int answer[2];
  if (pipe2(answer, O_CLOEXEC) != 0) return "no pipe to try it through";
  const pid_t pid = fork();
  if (pid == 0) child(work, answer[1]);
  close(answer[1]);
  char text[256];
  std::string wrong;
  for (ssize_t n; pid > 0 && (n = read(answer[0], text, sizeof text)) != 0;) {
    if (n > 0)
      wrong.append(text, static_cast<size_t>(n));
    else if (errno != EINTR)
      break;
  }
  close(answer[0]);
  if (pid < 0) return "no process to try it in";
  int status = 0;
  while (waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return "lost";
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return wrong;
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) return "takes too long";
  return "hwloc breaks down on it";
}

}  // namespace trainlaunch
