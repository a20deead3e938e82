// Other programs, run by tests.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

namespace trainlaunch {

// A program's exit status, or minus the signal that ended it.
inline int spawn(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    (void)!freopen("/dev/null", "w", stdout);
    (void)!freopen("/dev/null", "w", stderr);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// Whether strace can watch and change the calls of other processes; says so where it cannot.
inline bool strace_works() {
#ifdef __SANITIZE_ADDRESS__
  std::puts("skipped: the calls that the sanitizers make themselves would be hit");
  return false;
#endif
  static const bool works = [] {
    const bool ok = spawn({"strace", "-qq", "-o", "/dev/null", "-e", "trace=write", "-e",
                           "inject=write:retval=0", "true"}) == 0;
    if (!ok) std::puts("skipped: strace is not there or may not trace");
    return ok;
  }();
  return works;
}

}  // namespace trainlaunch
