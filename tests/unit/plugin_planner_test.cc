// How gpu_bind.so starts the planner: with the user's rights, and for so long and no longer.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "../../spank/drop.h"
#include "plugin_parts.h"
#include "temporary.h"

using namespace trainlaunch;
using namespace trainlaunch::plugin;

namespace {

// Stands where slurmstepd stands in user_init: real uid root, effective rights the user's.
class AsDaemon {
 public:
  AsDaemon() {
    if (getuid() != 0) return;
    groups_.resize(static_cast<size_t>(getgroups(0, nullptr)));
    if (getgroups(static_cast<int>(groups_.size()), groups_.data()) < 0) groups_.clear();
    const gid_t mine[] = {nobody, 12345};
    REQUIRE(setgroups(2, mine) == 0);
    REQUIRE(setegid(nobody) == 0);
    REQUIRE(seteuid(nobody) == 0);
  }
  ~AsDaemon() {
    if (getuid() != 0) return;
    CHECK(geteuid() == nobody);
    if (seteuid(0) != 0 || setegid(0) != 0 || setgroups(groups_.size(), groups_.data()) != 0)
      std::abort();
  }
  User user() const { return {geteuid(), getegid()}; }

 private:
  std::vector<gid_t> groups_;
};

struct Ran {
  bool ok;
  std::string out, why;
};

Ran run(std::vector<std::string> words, unsigned timeout_ms = 5000) {
  const AsDaemon daemon;
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  static char out[64 * 1024];
  size_t used = 0;
  Reason why;
  const Planner planner{words[0].c_str(), argv.data(), daemon.user(), timeout_ms};
  const bool ok = run_planner(planner, out, sizeof out, used, why);
  return {ok, std::string(out, used), std::string(why.view())};
}

Ran shell(const std::string& script, unsigned timeout_ms = 5000) {
  return run({"/bin/sh", "-c", script}, timeout_ms);
}

bool alive(const std::string& pid) {
  const std::string stat = read_file("/proc/" + pid + "/stat");
  const size_t after_name = stat.rfind(')');
  return after_name != std::string::npos && stat.substr(after_name + 2, 1) != "Z";
}

bool has_children() { return waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD; }

}  // namespace

TEST_CASE("the answer comes through") {
  const Ran r = run({"/bin/echo", "plan", "--ranks=2"});
  CHECK_MESSAGE(r.ok, r.why);
  CHECK(r.out == "plan --ranks=2\n");
  CHECK_FALSE(has_children());
}

TEST_CASE("the planner is the user and nothing more") {
  if (getuid() != 0) {
    MESSAGE("skipped: only root has rights to drop");
    return;
  }
  const Ran r =
      run({"/bin/grep", "-E", "^(Uid|Gid|Groups|NoNewPrivs|CapPrm|CapEff):", "/proc/self/status"});
  REQUIRE_MESSAGE(r.ok, r.why);
  CHECK(r.out ==
        "Uid:\t65534\t65534\t65534\t65534\nGid:\t65534\t65534\t65534\t65534\n"
        "Groups:\t12345 65534 \nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n"
        "NoNewPrivs:\t1\n");
}

TEST_CASE("the planner's environment is fixed") {
  setenv("LD_PRELOAD_X", "steer", 1);
  const Ran r = run({"/usr/bin/env"});
  CHECK_MESSAGE(r.ok, r.why);
  CHECK(r.out == "PATH=/usr/bin:/bin\nLC_ALL=C\nHOME=/\n");
  unsetenv("LD_PRELOAD_X");
  CHECK(run({"/bin/pwd"}).out == "/\n");
  CHECK(shell("ulimit -c; umask").out == "0\n0077\n");
}

TEST_CASE("no file of the daemon reaches the planner") {
  const int leak = open("/etc/passwd", O_RDONLY);
  const int high = fcntl(leak, F_DUPFD, 700);
  REQUIRE(high >= 700);
  CHECK(shell("ls /proc/$$/fd").out == "0\n1\n2\n");
  close(leak);
  close(high);
}

TEST_CASE("a daemon without standard files can still ask") {
  const int in = fcntl(0, F_DUPFD_CLOEXEC, 10), out = fcntl(1, F_DUPFD_CLOEXEC, 10),
            err = fcntl(2, F_DUPFD_CLOEXEC, 10);
  close(0);
  close(1);
  close(2);
  const Ran r = shell("echo hello; echo noise >&2; read x; echo \"[$x]\"");
  dup2(in, 0);
  dup2(out, 1);
  dup2(err, 2);
  for (const int fd : {in, out, err}) close(fd);
  CHECK_MESSAGE(r.ok, r.why);
  CHECK(r.out == "hello\n[]\n");
}

TEST_CASE("signals are as in a fresh process, and the daemon's mask is back afterwards") {
  sigset_t block, before, after;
  sigemptyset(&block);
  sigaddset(&block, SIGTERM);
  sigprocmask(SIG_BLOCK, &block, &before);
  signal(SIGUSR1, SIG_IGN);
  // What no signal(2) can name: the C library's own, ignored by whoever started the daemon.
  const struct {
    void* handler = reinterpret_cast<void*>(1);  // SIG_IGN
    unsigned long flags = 0;
    void* restorer = nullptr;
    uint64_t mask = 0;
  } ignored;
  syscall(SYS_rt_sigaction, 32, &ignored, nullptr, sizeof ignored.mask);
  const Ran r = run({"/bin/grep", "-E", "^Sig(Blk|Ign):", "/proc/self/status"});
  sigprocmask(SIG_SETMASK, nullptr, &after);
  signal(SIGUSR1, SIG_DFL);
  CHECK(r.out == "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
  CHECK(sigismember(&after, SIGTERM) == 1);
  CHECK(sigismember(&after, SIGCHLD) == 0);
  sigprocmask(SIG_SETMASK, &before, nullptr);
}

TEST_CASE("a planner that hangs is killed") {
  const Ran r = shell("echo $$; exec sleep 60", 200);
  CHECK_FALSE(r.ok);
  CHECK(r.why == "the planner did not answer within 200 ms");
  CHECK_FALSE(alive(r.out.substr(0, r.out.find('\n'))));
  CHECK_FALSE(has_children());
}

TEST_CASE("a planner that closes the pipe and stays is killed") {
  const Ran r = shell("echo $$; exec sleep 60 >&-", 200);
  CHECK_FALSE(r.ok);
  CHECK(r.why == "the planner did not answer within 200 ms");
  CHECK_FALSE(alive(r.out.substr(0, r.out.find('\n'))));
}

TEST_CASE("a child of the planner cannot keep the pipe open, nor live on") {
  const Ran r = shell("sleep 60 & echo $!", 200);
  CHECK_FALSE(r.ok);
  CHECK(r.why == "the planner did not answer within 200 ms");
  for (int i = 0; i < 200 && alive(r.out.substr(0, r.out.find('\n'))); ++i) usleep(10000);
  CHECK_FALSE(alive(r.out.substr(0, r.out.find('\n'))));
}

TEST_CASE("a planner that ignores signals is killed") {
  CHECK_FALSE(shell("trap '' TERM INT HUP; while :; do sleep 1; done", 200).ok);
  CHECK_FALSE(has_children());
}

TEST_CASE("a planner that floods is cut off") {
  const Ran r = shell("exec yes");
  CHECK_FALSE(r.ok);
  CHECK(r.why == "the planner answered more than 64 KiB");
  CHECK_FALSE(has_children());
}

TEST_CASE("a crash and an exit code are told") {
  CHECK(shell("kill -SEGV $$").why == "the planner died of signal 11");
  CHECK(shell("exit 3").why == "/bin/sh ended with exit code 3");
  CHECK(shell("echo half an answer; exit 1").why == "/bin/sh ended with exit code 1");
}

TEST_CASE("a refusal and a planner that is not there come as the planner's error line") {
  const auto reason = [](const Ran& r) {
    CHECK(r.ok);
    return Read(r.out).reason();
  };
  CHECK(reason(shell("echo error no GPU 9 on this node; exit 1")) == "no GPU 9 on this node");
  CHECK(reason(run({"/nonexistent/gpu-bind"})) ==
        "cannot start the planner: /nonexistent/gpu-bind: No such file or directory");
  CHECK(reason(run({"/etc"})) == "cannot start the planner: /etc: Permission denied");
}
