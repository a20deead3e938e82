#include "process.h"

#include <fcntl.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>

extern char** environ;

namespace harness {
namespace {

namespace fs = std::filesystem;

std::string link_of(const std::string& path) {
  std::error_code error;
  return fs::read_symlink(path, error).string();
}

void look_at_files(Process& p) {
  // The directory's own descriptor is in the list, and gone when it is looked at.
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    const int flags = fcntl(fd, F_GETFD), status = fcntl(fd, F_GETFL);
    const std::string target = link_of(entry.path());
    if (flags < 0 || target.starts_with("/proc/")) continue;
    p["fd " + std::to_string(fd)] =
        target + ' ' + std::to_string(flags) + ' ' + std::to_string(status);
  }
}

void look_at_status(Process& p) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    const std::string key = line.substr(0, line.find(':'));
    for (const char* kept :
         {"Umask", "Uid", "Gid", "Groups", "Threads", "SigPnd", "ShdPnd", "SigBlk", "SigIgn",
          "SigCgt", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
          "Cpus_allowed_list", "Mems_allowed_list"})
      if (key == kept) p[key] = line.substr(key.size() + 1);
  }
}

void look_at_signals(Process& p) {
  for (int s = 1; s < NSIG; ++s) {
    struct {
      uintptr_t handler;
      unsigned long flags;
      uintptr_t restorer;
      uint64_t mask;
    } now = {};
    if (syscall(SYS_rt_sigaction, s, nullptr, &now, sizeof now.mask) != 0) continue;
    p["signal " + std::to_string(s)] = std::to_string(now.handler) + ' ' +
                                       std::to_string(now.flags) + ' ' + std::to_string(now.mask);
  }
}

void look_at_lines(Process& p, const std::string& name, const std::string& file) {
  std::ifstream in(file);
  int number = 0;
  for (std::string line; std::getline(in, line);) p[name + ' ' + std::to_string(++number)] = line;
}

void look_at_children(Process& p) {
  for (const auto& task : fs::directory_iterator("/proc/self/task")) {
    std::ifstream in(task.path() / "children");
    for (std::string pid; in >> pid;) p["child " + pid] = "there";
  }
}

void look_at_settings(Process& p) {
  int value = 0;
  prctl(PR_GET_PDEATHSIG, &value);
  p["parent's death signal"] = std::to_string(value);
  prctl(PR_GET_CHILD_SUBREAPER, &value);
  p["subreaper"] = std::to_string(value);
  p["dumpable"] = std::to_string(prctl(PR_GET_DUMPABLE));
  p["keepcaps"] = std::to_string(prctl(PR_GET_KEEPCAPS));
  p["timer slack"] = std::to_string(prctl(PR_GET_TIMERSLACK));
  p["nice"] = std::to_string(getpriority(PRIO_PROCESS, 0));
  p["session"] = std::to_string(getsid(0)) + ' ' + std::to_string(getpgrp());
  p["personality"] = std::to_string(personality(0xffffffff));
  for (const __itimer_which_t which : {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF}) {
    itimerval timer{};
    getitimer(which, &timer);
    p["timer " + std::to_string(which)] =
        timer.it_value.tv_sec || timer.it_value.tv_usec ? "runs" : "rests";
  }
  int mode = -1;
  unsigned long nodes[16] = {};
  syscall(SYS_get_mempolicy, &mode, nodes, 8 * sizeof nodes, nullptr, 0);
  p["memory policy"] = std::to_string(mode) + ' ' + std::to_string(nodes[0]);
}

}  // namespace

Process look() {
  Process p;
  look_at_files(p);
  look_at_status(p);
  look_at_signals(p);
  look_at_children(p);
  look_at_settings(p);
  look_at_lines(p, "limit", "/proc/self/limits");
  look_at_lines(p, "cgroup", "/proc/self/cgroup");
  for (const char* link : {"cwd", "root", "exe", "ns/mnt", "ns/net", "ns/pid", "ns/user", "ns/uts"})
    p[link] = link_of(std::string("/proc/self/") + link);
  for (char** e = environ; *e; ++e) {
    const std::string variable = *e;
    p["environment " + variable.substr(0, variable.find('='))] = variable;
  }
  return p;
}

std::vector<std::string> differences(const Process& before, const Process& after) {
  std::vector<std::string> found;
  const auto value = [](const Process& p, const std::string& what) {
    const auto at = p.find(what);
    return at == p.end() ? "(none)" : at->second;
  };
  for (const auto& [what, was] : before)
    if (value(after, what) != was) found.push_back(what + ": " + was + " -> " + value(after, what));
  for (const auto& [what, is] : after)
    if (!before.contains(what)) found.push_back(what + ": (none) -> " + is);
  return found;
}

}  // namespace harness
