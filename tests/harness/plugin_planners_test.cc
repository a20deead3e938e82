// gpu_bind.so under a stand-in for Slurm's programs: whatever the planner does and whoever attacks
// it, no hook fails, slurmstepd stays as it was, and ranks get nothing. Every case runs with the
// plugin as it is installed, and with one built under sanitizers.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "checks.h"
#include "steps.h"

using namespace harness;
using trainlaunch::read_file;
using trainlaunch::write_file;
namespace fs = std::filesystem;

namespace {

// The step runs unbound with one line that has `reason`; under strict it does not run, and says the
// same. Neither is an error in Slurm's eyes, whatever plugstack.conf says.
void check_refused(Step& step, const std::string& reason) {
  step.request["required"] = false;
  Outcome o = step.run();
  check_quiet(o);
  check_unbound(o);
  CHECK(o.err == "");
  REQUIRE(o.logged().size() == 1);
  CHECK_MESSAGE(o.logged()[0].find(reason) != std::string::npos, o.logged()[0]);
  CHECK(printable(o.logged()[0]));

  step.request["required"] = true;
  step.request["options"]["gpu-bind-strict"] = "yes";
  o = step.run();
  check_quiet(o);
  for (const int i : {0, 1}) {
    CHECK_FALSE(o.rank(i));
    CHECK(o.rank_status(i) == 1);
  }
  CHECK(o.logged() == Strings());
  CHECK_MESSAGE(o.err.find("job step stopped: ") != std::string::npos, o.err);
  CHECK_MESSAGE(o.err.find(reason) != std::string::npos, o.err);
  CHECK(printable(o.err));
}

// A process of the user's, doing `work`.
int as_user(const std::function<int()>& work) {
  const pid_t pid = fork();
  if (pid == 0) {
    if (setgroups(0, nullptr) || setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
      _exit(99);
    _exit(work());
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The planner of a step that runs: it wrote its pid first thing.
std::optional<pid_t> pid_in(const std::string& file) {
  for (int i = 0; i < 500; ++i) {
    const std::string text = read_file(file);
    if (text.ends_with('\n')) return std::stoi(text);
    usleep(10000);
  }
  return std::nullopt;
}

// The process that runs the program at `path`.
std::optional<pid_t> process_of(const std::string& path) {
  for (int i = 0; i < 500; ++i) {
    for (const auto& entry : fs::directory_iterator("/proc")) {
      std::error_code error;
      if (fs::read_symlink(entry.path() / "exe", error) == path)
        return std::stoi(entry.path().filename());
    }
    usleep(10000);
  }
  return std::nullopt;
}

std::string state_of(pid_t pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const size_t name = stat.rfind(')');
  return name == std::string::npos ? "gone" : stat.substr(name + 2, 1);
}

bool runs(pid_t pid) {
  const std::string state = state_of(pid);
  return state != "gone" && state != "Z";
}

void check_gone(pid_t pid) {
  for (int i = 0; i < 500 && runs(pid); ++i) usleep(10000);
  CHECK_FALSE(runs(pid));
}

// A file system on which every write waits until it is thawed, not even to be killed.
class Frozen {
 public:
  explicit Frozen(const std::string& dir) : image_(dir + "/image"), mount_(dir + "/mount") {
    fs::create_directory(mount_);
    frozen_ = does("truncate -s 8M " + image_) && does("mkfs.ext4 -q " + image_) &&
              (mounted_ = does("mount -o loop " + image_ + ' ' + mount_)) &&
              does("chmod 777 " + mount_) && does("fsfreeze -f " + mount_);
  }
  ~Frozen() {
    thaw();
    for (int i = 0; mounted_ && i < 100 && !does("umount " + mount_); ++i) usleep(50000);
  }
  Frozen(const Frozen&) = delete;
  Frozen& operator=(const Frozen&) = delete;
  explicit operator bool() const { return frozen_; }
  std::string file() const { return mount_ + "/file"; }
  void thaw() {
    if (frozen_) does("fsfreeze -u " + mount_);
    frozen_ = false;
  }

 private:
  static bool does(const std::string& command) {
    return std::system(("PATH=$PATH:/sbin:/usr/sbin; " + command + " > /dev/null 2>&1").c_str()) ==
           0;
  }
  std::string image_, mount_;
  bool mounted_ = false, frozen_ = false;
};

}  // namespace

TEST_CASE("planners that fail, each in its own way") {
  const struct {
    const char* script;
    const char* reason;
  } planners[] = {
      {"exit 3", "ended with exit code 3"},
      {"kill -SEGV $$", "died of signal 11"},
      {"kill -KILL $$", "died of signal 9"},
      {"echo 'error no GPU 7'; exit 1", "no GPU 7"},
      {"printf 'error \\033[31mred\\007\\n'; exit 1", "?[31mred?"},
      {"printf 'error '; head -c 9000 /dev/zero | tr '\\0' x; exit 1", "too long"},
      {"exec yes", "answered more than 256 KiB"},
      {"exec cat /dev/zero", "answered more than 256 KiB"},
      {"head -c 262144 /dev/zero", "line 1: too long"},
      {":", "cut short"},
      {"echo gpu-bind-wire 2; echo digest 0; echo end", "another version"},
      {"echo gpu-bind-wire 1; echo digest 0; echo rank 0", "cut short"},
      {"echo gpu-bind-wire 1; echo digest 0; echo rank 0; echo end", "1 ranks of 2"},
      {"echo gpu-bind-wire 1; echo digest 0; for i in 0 1 2; do echo rank $i; done; echo end",
       "3 ranks of 2"},
      {"printf 'gpu-bind-wire 1\\ndigest 0\\nrank 0\\ncpus 0-8192\\nrank 1\\nend\\n'",
       "not a list of CPUs"},
      {"printf 'gpu-bind-wire 1\\ndigest 0\\nrank 0\\nenv set NCCL_IB_HCA=\\001\\nrank 1\\nend\\n'",
       "control characters"},
  };
  with_each_build([&](const Build& build) {
    for (const auto& p : planners) {
      CAPTURE(std::string(p.script));
      Step step(build);
      step.planner(p.script);
      check_refused(step, p.reason);
    }
  });
}

TEST_CASE("planners that outstay the deadline") {
  with_each_build([](const Build& build) {
    for (const char* script : {"exec sleep 60", "kill -STOP $$; exec sleep 60",
                               "exec sleep 60 >&-",                // closes the pipe and stays
                               "sleep 60 & echo gpu-bind-wire 1",  // a child holds the pipe
                               "trap '' TERM INT HUP; while :; do sleep 1; done",
                               "while :; do echo say x; sleep 0.05; done"}) {  // keeps talking
      CAPTURE(std::string(script));
      Step step(build);
      step.config("timeout-ms=200");
      step.planner("echo $$ > " + (step.dir / "pid") + "\n" + script);
      write_file(step.dir / "pid", "");
      chmod((step.dir / "pid").c_str(), 0666);
      const auto begin = std::chrono::steady_clock::now();
      const Outcome o = step.run();
      // The sleeps above are far longer than any delay of this machine's.
      CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
      check_quiet(o);
      check_unbound(o);
      REQUIRE(o.logged().size() == 1);
      CHECK(o.logged()[0].find("did not answer within 200 ms") != std::string::npos);
      if (const auto pid = pid_in(step.dir / "pid")) check_gone(*pid);
    }
  });
}

TEST_CASE(
    "a planner in a wait that signals do not interrupt, and one that leaves the pipe behind") {
  with_each_build([](const Build& build) {
    for (const char* name : {"vfork", "orphan"}) {
      CAPTURE(std::string(name));
      Step step(build);
      step.config("timeout-ms=300");
      step.planner_path = step.dir / name;
      fs::copy(std::string(TL_BUILDDIR) + "/tests/harness/mischief", step.planner_path);
      step.request["args"][0] = "planner=" + step.planner_path;
      step.start();
      if (std::string(name) == "vfork" && getuid() == 0) {
        const auto pid = process_of(step.planner_path);
        REQUIRE(pid);
        bool seen = false;
        for (int i = 0; i < 300 && !seen && runs(*pid); ++i, usleep(1000))
          seen = state_of(*pid) == "D";
        CHECK(seen);
      }
      const Outcome o = step.finish();
      check_quiet(o);
      check_unbound(o);
      REQUIRE(o.logged().size() == 1);
      CHECK(o.logged()[0].find("did not answer within 300 ms") != std::string::npos);
    }
  });
}

TEST_CASE("a planner that not even SIGKILL ends does not hold up the step") {
  if (!root()) return;
  if (trainlaunch::Temporary dir; !Frozen(dir.path())) {
    MESSAGE("skipped: no file system can be made and frozen here (mkfs.ext4, mount, fsfreeze)");
    return;
  }
  with_each_build([](const Build& build) {
    Step step(build);
    Frozen frozen(step.dir.path());
    REQUIRE(frozen);
    write_file(step.dir / "pid", "");
    chmod((step.dir / "pid").c_str(), 0666);
    step.config("timeout-ms=300");
    step.planner("echo $$ > " + (step.dir / "pid") + "; echo x > " + frozen.file());
    const Outcome o = step.run();
    const auto pid = pid_in(step.dir / "pid");
    REQUIRE(pid);
    CHECK(state_of(*pid) == "D");
    // It stays for slurmstepd's own wait to find; nothing else does.
    CHECK(o.changed() ==
          Strings{"slurm_spank_user_init: child " + std::to_string(*pid) + ": (none) -> there"});
    CHECK(o.answered_zero());
    check_unbound(o);
    REQUIRE(o.logged().size() == 1);
    CHECK(o.logged()[0].find("did not answer within 300 ms") != std::string::npos);
    frozen.thaw();
    check_gone(*pid);
  });
}

TEST_CASE("planners that are not to be trusted are not started") {
  if (!root()) return;
  with_each_build([](const Build& build) {
    const auto refused = [&](const std::function<void(Step&)>& spoil, const std::string& reason) {
      CAPTURE(reason);
      Step step(build);
      step.planner("touch " + (step.dir / "started"));
      spoil(step);
      check_refused(step, reason);
      CHECK_FALSE(fs::exists(step.dir / "started"));
      chmod(step.dir.path().c_str(), 0755);
    };
    const std::string owner = "does not belong to root", mode = "others than root can write it";
    refused([](Step& s) { unlink(s.planner_path.c_str()); }, "No such file");
    refused([](Step& s) { CHECK(chown(s.planner_path.c_str(), user(), 0) == 0); }, owner);
    refused([](Step& s) { chmod(s.planner_path.c_str(), 0775); }, mode);
    refused([](Step& s) { chmod(s.dir.path().c_str(), 0777); }, "can write its directory");
    refused([](Step& s) { CHECK(chown(s.dir.path().c_str(), user(), 0) == 0); }, owner);
    refused([](Step& s) { chmod(s.planner_path.c_str(), 0644); }, "Permission denied");
    refused([](Step& s) { s.request["args"][0] = "planner=planner"; }, "must be absolute");
    refused([](Step& s) { s.request["args"][0] = "planner=/dev/null"; }, "not a regular file");
    refused([](Step& s) { s.request["args"][0] = "planer=/usr/bin/true"; }, "use planner=PATH");
    refused([](Step& s) { chmod(s.config_path.c_str(), 0666); }, mode);
    refused([](Step& s) { unlink(s.config_path.c_str()); }, "No such file");
    refused([](Step& s) { s.config("timeout-ms=-1"); }, "gpu-bind.conf:1: timeout-ms");
  });
}

TEST_CASE("the environment of a job does not reach the planner") {
  with_each_build([](const Build& build) {
    Step step(build);
    for (const char* name :
         {"LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "LD_DEBUG", "HWLOC_XMLFILE",
          "HWLOC_COMPONENTS", "HWLOC_PLUGINS_PATH", "PATH", "HOME", "IFS", "ENV", "BASH_ENV",
          "GLIBC_TUNABLES", "MALLOC_TRACE", "LOCPATH", "RES_OPTIONS"})
      step.request["env"][name] = "/tmp/steer";
    step.planner(
        "echo gpu-bind-wire 1; echo digest 0\n"
        "tr '\\0' '\\n' < /proc/$$/environ | sed 's/^/say /'; echo rank 0; echo rank 1; echo end");
    const Outcome o = step.run();
    check_quiet(o);
    Strings said = o.logged();
    std::sort(said.begin(), said.end());
    CHECK(said == Strings{"HOME=/", "LC_ALL=C", "PATH=/usr/bin:/bin"});
  });
}

TEST_CASE(
    "a user on the node can neither read nor trace nor steer the planner, and it ends with the "
    "step") {
  if (!root()) return;
  with_each_build([](const Build& build) {
    const auto attacked = [&](const std::function<int(pid_t)>& attack, const std::string& reason) {
      Step step(build);
      step.config("timeout-ms=1000");
      step.planner_path = step.dir / "sleeper";
      fs::copy(std::string(TL_BUILDDIR) + "/tests/harness/mischief", step.planner_path);
      chmod(step.planner_path.c_str(), 0711);  // as it is installed
      step.request["args"][0] = "planner=" + step.planner_path;
      step.start();
      const auto pid = process_of(step.planner_path);
      REQUIRE(pid);
      CHECK(as_user([&] { return attack(*pid); }) == 0);
      const Outcome o = step.finish();
      check_quiet(o);
      check_unbound(o);
      REQUIRE(o.logged().size() == 1);
      CHECK_MESSAGE(o.logged()[0].find(reason) != std::string::npos, o.logged()[0]);
      check_gone(*pid);
    };
    attacked(
        [](pid_t pid) {
          const std::string proc = "/proc/" + std::to_string(pid);
          if (ptrace(PTRACE_ATTACH, pid, nullptr, nullptr) == 0) return 1;
          if (ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0) return 2;
          int bad = 3;
          for (const char* file : {"/mem", "/environ", "/maps", "/auxv", "/fd", "/exe", "/cwd"}) {
            char link[16];
            const bool opened = open((proc + file).c_str(), O_RDONLY) >= 0;
            if (opened || readlink((proc + file).c_str(), link, sizeof link) >= 0) return bad;
            ++bad;
          }
          return 0;
        },
        "did not answer within 1000 ms");
    attacked([](pid_t pid) { return kill(pid, SIGSTOP) == 0 ? 0 : 1; },
             "did not answer within 1000 ms");
    attacked([](pid_t pid) { return kill(pid, SIGKILL) == 0 ? 0 : 1; }, "died of signal 9");
    // It may still be loading its libraries: what it dies of is then the loader's affair.
    attacked(
        [](pid_t pid) {
          const rlimit none{0, 0};
          for (const __rlimit_resource what : {RLIMIT_NOFILE, RLIMIT_AS, RLIMIT_CPU, RLIMIT_STACK})
            prlimit(pid, what, &none, nullptr);
          return 0;
        },
        "ranks stay as Slurm started them");
  });
}

TEST_CASE("slurmstepd's death ends the planner") {
  with_each_build([](const Build& build) {
    Step step(build);
    step.config("timeout-ms=60000");
    step.planner("echo $$ > " + (step.dir / "pid") + "; exec sleep 600");
    write_file(step.dir / "pid", "");
    chmod((step.dir / "pid").c_str(), 0666);
    step.start();
    const auto pid = pid_in(step.dir / "pid");
    REQUIRE(pid);
    REQUIRE(kill(step.pid(), SIGKILL) == 0);
    step.finish();
    check_gone(*pid);
  });
}

TEST_CASE("the planner is told of the cache") {
  with_each_build([](const Build& build) {
    Step step(build);
    step.request["args"].push_back("cache=/run/gpu-bind");
    step.planner(
        "echo gpu-bind-wire 1; echo digest 0; for a; do echo \"say $a\"; done; echo rank 0; "
        "echo rank 1; echo end");
    const Outcome o = step.run();
    check_quiet(o);
    const Strings said = o.logged();
    CHECK(std::count(said.begin(), said.end(), "--cache=/run/gpu-bind") == 1);
    // Which is not what the plan is made of, so that `gpu-bind check` needs it not.
    REQUIRE(o.rank(0));
    CHECK(o.rank(0)->env.at("GPU_BIND_STEP").find("cache") == std::string::npos);
  });
}
