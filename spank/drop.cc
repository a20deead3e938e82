#include "drop.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>

namespace trainlaunch::plugin {
namespace {

constexpr int max_groups = 65536;  // NGROUPS_MAX of Linux

int64_t now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * int64_t{1000} + t.tv_nsec / 1000000;
}

// --- The child. Its one way to speak is the pipe. ---

[[noreturn]] void give_up(const char* what) {
  const int error = errno;
  Reason line;
  line.set("error cannot start the planner: ", what, ": ", strerrordesc_np(error), "\n");
  // If even this fails, the exit code tells.
  if (write(STDOUT_FILENO, line.c_str(), line.view().size()) < 0) _exit(126);
  _exit(127);
}

// The C library refuses to touch two real-time signals that it keeps for itself, but a daemon's
// parent may have ignored them: the kernel is asked. All zero is the default action.
void reset_signals() {
  const struct {
    void* handler;
    unsigned long flags;
    void* restorer;
    uint64_t mask;
  } fresh = {};
  for (int s = 1; s < NSIG; ++s) syscall(SYS_rt_sigaction, s, &fresh, nullptr, sizeof fresh.mask);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Standard output is the pipe, if there is one, the rest goes nowhere. The daemon may have closed
// 0, 1 or 2, so that the pipe got one of these numbers: first out of the way, then into place.
constexpr int no_pipe = -1;
void set_files(int pipe_end) {
  const int null = open("/dev/null", O_RDWR);
  const int out = fcntl(pipe_end == no_pipe ? null : pipe_end, F_DUPFD, 3);
  if (out < 0 || dup2(out, STDOUT_FILENO) < 0) _exit(126);
  if (dup2(null, STDIN_FILENO) < 0 || dup2(null, STDERR_FILENO) < 0) give_up("/dev/null");
  if (syscall(SYS_close_range, 3u, ~0u, 0u) == 0) return;
  rlimit files;  // a kernel before 5.9
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) give_up("getrlimit");
  for (rlim_t fd = 3; fd < files.rlim_cur; ++fd) close(static_cast<int>(fd));
}

// Root's rights come back for a moment, only to be given up for good: real, effective and saved ids
// all become the user's, and this is checked.
void become(const User& user, gid_t* groups) {
  if (getuid() == 0) {
    const int n = getgroups(max_groups, groups);  // the daemon made them the user's already
    if (n < 0) give_up("getgroups");
    if (seteuid(0) != 0) give_up("seteuid");
    if (setgroups(static_cast<size_t>(n), groups) != 0) give_up("setgroups");
    if (setresgid(user.gid, user.gid, user.gid) != 0) give_up("setresgid");
    if (setresuid(user.uid, user.uid, user.uid) != 0) give_up("setresuid");
  }
  uid_t r, e, s;
  gid_t rg, eg, sg;
  errno = EPERM;
  if (getresuid(&r, &e, &s) != 0 || r != user.uid || e != user.uid || s != user.uid) give_up("uid");
  if (getresgid(&rg, &eg, &sg) != 0 || rg != user.gid || eg != user.gid || sg != user.gid)
    give_up("gid");
  if (user.uid != 0 && setuid(0) == 0) give_up("root is still within reach");
}

// Never above the hard limit there is: raising it is refused.
void limit(__rlimit_resource what, rlim_t value) {
  rlimit now;
  if (getrlimit(what, &now) != 0) give_up("getrlimit");
  if (now.rlim_max < value) value = now.rlim_max;
  const rlimit l{value, value};
  if (setrlimit(what, &l) != 0) give_up("setrlimit");
}

[[noreturn]] void run(const char* path, char* const* argv) {
  if (chdir("/") != 0) give_up("chdir");
  char search[] = "PATH=/usr/bin:/bin", locale[] = "LC_ALL=C", home[] = "HOME=/";
  char* const environment[] = {search, locale, home, nullptr};
  execve(path, argv, environment);
  give_up(path);
}

[[noreturn]] void child(const Planner& planner, int pipe_end, pid_t parent, gid_t* groups) {
  reset_signals();
  set_files(pipe_end);
  setsid();  // the deadline kills the whole group
  become(planner.user, groups);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) give_up("no_new_privs");
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up("pdeathsig");
  if (getppid() != parent) _exit(126);
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_CPU, planner.timeout_ms / 1000 + 2);
  limit(RLIMIT_AS, rlim_t{4} << 30);
  umask(077);
  run(planner.path, planner.argv);
}

// --- The parent. ---

// fork, but no handler of the daemon may run in the child. `errno` is fork's.
template <class F>
pid_t fork_quietly(F child) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  const pid_t pid = fork();
  if (pid == 0) child();
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return pid;
}

enum class Reading { ended, late, full, failed };

Reading read_until(int fd, int64_t deadline, char* out, size_t size, size_t& used) {
  for (;;) {
    const int64_t left = deadline - now_ms();
    if (left <= 0) return Reading::late;
    pollfd p{fd, POLLIN, 0};
    const int ready = poll(&p, 1, static_cast<int>(left));
    if (ready < 0 && errno != EINTR) return Reading::failed;
    if (ready <= 0) continue;
    if (used == size) {
      char more;
      if (read(fd, &more, 1) == 0) return Reading::ended;
      return Reading::full;
    }
    const ssize_t n = read(fd, out + used, size - used);
    if (n == 0) return Reading::ended;
    if (n < 0 && errno != EINTR && errno != EAGAIN) return Reading::failed;
    if (n > 0) used += static_cast<size_t>(n);
  }
}

// Waits for the child without ever blocking on it. False: it still runs at the deadline.
bool reap(pid_t pid, int64_t deadline, int& status) {
  for (;;) {
    const pid_t got = waitpid(pid, &status, WNOHANG);
    if (got == pid) return true;
    if (got < 0 && errno != EINTR) {
      status = 0;  // somebody else reaped it; the answer must speak for itself
      return true;
    }
    if (now_ms() >= deadline) return false;
    poll(nullptr, 0, 1);
  }
}

void destroy(pid_t pid) {
  kill(-pid, SIGKILL);
  kill(pid, SIGKILL);
  int status;
  reap(pid, now_ms() + 50, status);  // if it lasts longer, the daemon's own wait finds it
}

}  // namespace

bool run_planner(const Planner& planner, char* out, size_t size, size_t& used, Reason& why) {
  used = 0;
  static gid_t groups[max_groups];  // the child's; too much for a stack
  const int64_t deadline = now_ms() + planner.timeout_ms;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    why.set("pipe: ", strerrordesc_np(errno));
    return false;
  }
  const pid_t parent = getpid();
  const pid_t pid = fork_quietly([&] { child(planner, ends[1], parent, groups); });
  const int fork_error = errno;
  close(ends[1]);
  if (pid < 0) {
    close(ends[0]);
    why.set("fork: ", strerrordesc_np(fork_error));
    return false;
  }

  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  const Reading reading = read_until(ends[0], deadline, out, size, used);
  close(ends[0]);
  int status = 0;
  const bool ended = reading == Reading::ended && reap(pid, deadline, status);
  if (!ended) destroy(pid);

  if (reading == Reading::full) {
    why.set("the planner answered more than ", static_cast<long>(size / 1024), " KiB");
  } else if (reading == Reading::failed) {
    why.set("cannot read the planner's answer");
  } else if (!ended) {
    why.set("the planner did not answer within ", static_cast<long>(planner.timeout_ms), " ms");
  } else if (WIFSIGNALED(status)) {
    why.set("the planner died of signal ", static_cast<long>(WTERMSIG(status)));
  } else if (WEXITSTATUS(status) != 0 && !starts_with({out, used}, "error ")) {
    why.set(planner.path, " ended with exit code ", static_cast<long>(WEXITSTATUS(status)));
  } else {
    return true;
  }
  return false;
}

bool start_apart(const char* path, char* const* argv, Reason& why) {
  const pid_t pid = fork_quietly([&] {
    reset_signals();
    set_files(no_pipe);
    setsid();
    const pid_t apart = fork();
    if (apart != 0) _exit(apart < 0 ? 126 : 0);
    limit(RLIMIT_CORE, 0);
    umask(022);
    run(path, argv);
  });
  if (pid < 0) {
    why.set("fork: ", strerrordesc_np(errno));
    return false;
  }
  // It has nothing to do but to fork.
  constexpr int patience_ms = 1000;
  int status = 0;
  if (!reap(pid, now_ms() + patience_ms, status)) {
    destroy(pid);
    why.set("no process in time");
    return false;
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  why.set("no process to be had");
  return false;
}

}  // namespace trainlaunch::plugin
