#include "launcher/worker_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string_view>

#include "base/file.h"
#include "base/time.h"
#include "boot/worker.h"

namespace trainlaunch {
namespace {

constexpr Seconds sweep_limit{5};

// Numbers that name the entries of a folder of /proc.
std::vector<int> entries(const char* folder) {
  std::vector<int> out;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(folder), closedir);
  if (!dir) return out;
  while (const dirent* e = readdir(dir.get())) {
    char* end = nullptr;
    const long n = std::strtol(e->d_name, &end, 10);
    if (end != e->d_name && *end == '\0' && n != dirfd(dir.get()))
      out.push_back(static_cast<int>(n));
  }
  return out;
}

// Whatever else this process has open (PMIx's connection above all) ends at the worker's exec.
void keep_from_worker(const std::vector<int>& given) {
  for (int fd : entries("/proc/self/fd"))
    if (std::find(given.begin(), given.end(), fd) == given.end()) fcntl(fd, F_SETFD, FD_CLOEXEC);
}

bool of_launcher(std::string_view variable) {
  for (std::string_view prefix : {"PMIX_", "PMI_", "PMI2_"})
    if (variable.starts_with(prefix)) return true;
  return false;
}

std::vector<std::string> environment_of(const WorkerProcess::Spec& spec) {
  const auto replaced = [&](std::string_view variable) {
    const std::string_view name = variable.substr(0, variable.find('='));
    if (name == control_variable) return true;
    return std::any_of(spec.environment.begin(), spec.environment.end(),
                       [&](const auto& e) { return e.first == name; });
  };
  std::vector<std::string> out;
  for (char** e = environ; *e; ++e)
    if (!of_launcher(*e) && !replaced(*e)) out.emplace_back(*e);
  for (const auto& [name, value] : spec.environment) out.push_back(name + "=" + value);
  return out;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const std::string& s : strings) out.push_back(const_cast<char*>(s.c_str()));
  out.push_back(nullptr);
  return out;
}

// In the child: only calls that are safe after fork() in a process with threads.
[[noreturn]] void become_worker(const WorkerProcess::Spec& spec, char** argv, char** envp,
                                pid_t supervisor, int report) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != supervisor) _exit(exit_code::failed);  // it died before the line above
  for (int fd : spec.inherit) fcntl(fd, F_SETFD, 0);
  ::signal(SIGPIPE, SIG_DFL);  // the supervisor ignores it
  setrlimit(RLIMIT_NOFILE, &spec.descriptors);
  sigprocmask(SIG_SETMASK, &spec.signal_mask, nullptr);
  execvpe(spec.path.c_str(), argv, envp);
  const int why = errno;
  (void)!write(report, &why, sizeof why);
  _exit(127);
}

std::vector<int> children() {
  std::vector<int> out;
  for (int thread : entries("/proc/self/task")) {
    std::ifstream list("/proc/self/task/" + std::to_string(thread) + "/children");
    for (int pid; list >> pid;) out.push_back(pid);
  }
  return out;
}

}  // namespace

std::vector<int> open_descriptors() { return entries("/proc/self/fd"); }

Result<WorkerProcess> WorkerProcess::start(const Spec& spec) {
  // Orphans of the worker become children of this process, so that sweep() finds them.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  int pipe[2];
  if (pipe2(pipe, O_CLOEXEC | O_NONBLOCK) < 0) return fail_errno("pipe");
  Fd heard(pipe[0]), report(pipe[1]);
  keep_from_worker(spec.given);
  const std::vector<std::string> environment = environment_of(spec);
  const std::vector<char*> argv = pointers(spec.argv), envp = pointers(environment);

  const pid_t supervisor = getpid();
  const pid_t pid = fork();
  if (pid < 0) return fail_errno("fork");
  if (pid == 0)
    become_worker(spec, const_cast<char**>(argv.data()), const_cast<char**>(envp.data()),
                  supervisor, report.get());
  setpgid(pid, pid);
  return WorkerProcess(pid, spec.argv.front(), std::move(heard));
}

Status WorkerProcess::started() const {
  int why = 0;
  if (read(heard_.get(), &why, sizeof why) != sizeof why) return {};
  errno = why;
  return fail_errno("cannot run " + name_, why == ENOENT ? 127 : 126);
}

void WorkerProcess::signal(int number) const { kill(-pid_, number); }

std::optional<int> WorkerProcess::reap() {
  std::optional<int> worker;
  int status = 0;
  for (pid_t p; (p = waitpid(-1, &status, WNOHANG)) > 0;) {
    if (p != pid_) continue;
    worker = status;
    running_ = false;
  }
  return worker;
}

void WorkerProcess::sweep() const {
  const Deadline deadline = Deadline::in(sweep_limit);
  while (!deadline.over()) {
    kill(-pid_, SIGKILL);
    for (int child : children()) kill(child, SIGKILL);
    pid_t p;
    while ((p = waitpid(-1, nullptr, WNOHANG)) > 0) {
    }
    if (p < 0) return;
    poll(nullptr, 0, 5);
  }
}

}  // namespace trainlaunch
