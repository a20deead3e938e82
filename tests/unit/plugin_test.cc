// The parts of gpu_bind.so below Slurm's hooks, against planners and files that mean harm.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "../../spank/answer.h"
#include "../../spank/apply.h"
#include "../../spank/asked.h"
#include "../../spank/drop.h"
#include "../../spank/files.h"
#include "../../spank/options.h"
#include "temporary.h"

using namespace trainlaunch;
using namespace trainlaunch::plugin;

namespace {

// --- Answers ---

const std::string good =
    "gpu-bind-wire 1\n"
    "digest 0123abCD\n"
    "say the node\n"
    "warn mind the gap\n"
    "rank 0\n"
    "cpus 0-1,4\n"
    "mems preferred 0\n"
    "env keep NCCL_IB_HCA==mlx5_0:1,mlx5_1:1\n"
    "env set CUDA_VISIBLE_DEVICES=0,1\n"
    "say rank zero\n"
    "rank 1\n"
    "say rank one\n"
    "mems bind 1-3\n"
    "end\n";

struct Read {
  explicit Read(std::string t, unsigned ranks = 2) : text(std::move(t)) {
    ok = answer.read(text.data(), text.size(), ranks, why);
  }
  std::string reason() const { return std::string(why.view()); }
  std::string text;
  Answer answer;
  Reason why;
  bool ok;
};

// `good` with the first `from` replaced.
std::string with(const std::string& from, const std::string& to) {
  std::string s = good;
  const size_t at = s.find(from);
  REQUIRE(at != std::string::npos);
  return s.replace(at, from.size(), to);
}

void check_void(const std::string& text, const std::string& why) {
  CAPTURE(text);
  const Read r(text);
  CHECK_FALSE(r.ok);
  CHECK_MESSAGE(r.reason().find(why) != std::string::npos, r.reason());
}

template <int N>
std::vector<int> members(const Bits<N>& bits) {
  std::vector<int> m;
  for (int i = 0; i < N; ++i)
    if (bits.test(i)) m.push_back(i);
  return m;
}

std::vector<std::string> texts(std::string_view rest) {
  std::vector<std::string> found;
  for (std::string_view text; Answer::next_text(rest, text);) found.emplace_back(text);
  return found;
}

using Strings = std::vector<std::string>;

}  // namespace

TEST_CASE("an answer in order is read as it was meant") {
  const Read r(good);
  REQUIRE_MESSAGE(r.ok, r.reason());
  CHECK(r.answer.digest() == "0123abCD");
  CHECK(texts(r.answer.node()) == Strings{"the node", "mind the gap"});
  CHECK(texts(r.answer.rank(0)) == Strings{"rank zero"});
  CHECK(texts(r.answer.rank(1)) == Strings{"rank one"});

  const plugin::RankPlan zero = r.answer.plan(0), one = r.answer.plan(1);
  CHECK(zero.has_cpus);
  CHECK(members(zero.cpus) == std::vector<int>{0, 1, 4});
  CHECK(zero.mem_policy == MemPolicy::preferred);
  CHECK(members(zero.mems) == std::vector<int>{0});
  REQUIRE(zero.variable_count == 2);
  CHECK(std::string(zero.variables[0].name) == "NCCL_IB_HCA");
  CHECK(zero.variables[0].value == "=mlx5_0:1,mlx5_1:1");
  CHECK(zero.variables[0].give == plugin::Give::keep);
  CHECK(zero.variables[1].value == "0,1");
  CHECK(zero.variables[1].give == plugin::Give::set);

  CHECK_FALSE(one.has_cpus);
  CHECK(one.mem_policy == MemPolicy::bind);
  CHECK(members(one.mems) == std::vector<int>{1, 2, 3});
  CHECK(one.variable_count == 0);
}

TEST_CASE("an answer for no rank leaves everything alone, and says so") {
  const Read r("gpu-bind-wire 1\ndigest 0\nend\n");
  REQUIRE(r.ok);
  CHECK(r.answer.empty());
  CHECK_FALSE(Read(good).answer.empty());
}

TEST_CASE("an empty plan binds nothing") {
  const Read r("gpu-bind-wire 1\ndigest 0\nrank 0\nrank 1\nend\n");
  REQUIRE(r.ok);
  CHECK_FALSE(r.answer.empty());
  CHECK(r.answer.node().empty());
  for (unsigned i : {0u, 1u}) {
    const plugin::RankPlan plan = r.answer.plan(i);
    CHECK_FALSE(plan.has_cpus);
    CHECK(plan.mem_policy == MemPolicy::leave);
    CHECK(plan.variable_count == 0);
  }
}

TEST_CASE("the planner's own refusal is the reason, made safe to print") {
  const Read r("error no GPU 7 \x1b[31mhere\n");
  CHECK_FALSE(r.ok);
  CHECK(r.reason() == "no GPU 7 ?[31mhere");
  // Without a reason strict would have nothing to stop the job step with.
  CHECK(Read("error \n").reason() == "the planner gave no reason");
}

TEST_CASE("a truncated answer is void wherever it was cut") {
  // "end" and its newline: without the newline it is still whole.
  for (size_t n = 0; n + 1 < good.size(); ++n) {
    CAPTURE(n);
    CHECK_FALSE(Read(good.substr(0, n)).ok);
  }
  CHECK(Read(good.substr(0, good.size() - 1)).ok);
}

TEST_CASE("hostile answers are void") {
  check_void("", "cut short");
  check_void("#!/bin/sh\n", "no answer of gpu-bind");
  check_void(with("wire 1", "wire 2"), "another version");
  check_void(with("wire 1", "wire 99999999999999999999"), "no answer");
  check_void(with("digest 0123abCD", "digest $(reboot)"), "no digest");
  check_void(with("digest 0123abCD", "digest " + std::string(65, 'a')), "no digest");
  check_void(with("say the node", "sudo the node"), "unknown line");
  check_void(with("rank 1", "rank 0"), "out of order");
  check_void(with("rank 1", "rank 2"), "out of order");
  check_void(with("rank 1", "rank -1"), "out of order");
  check_void(with("rank 0", "rank 4294967296"), "out of order");
  check_void(with("end\n", "rank 2\nend\n"), "3 ranks of 2");
  check_void("gpu-bind-wire 1\ndigest 0\nrank 0\nend\n", "1 ranks of 2");
  check_void(good + "rank 0\n", "after the end");
  check_void(with("cpus 0-1,4", "cpus 0\ncpus 1"), "twice");
  check_void(with("mems bind 1-3", "mems bind 1\nmems bind 1"), "twice");
  check_void(with("mems bind", "mems interleave"), "policy");
  check_void(with("env keep", "env drop"), "neither keep, set nor unset");
  check_void(with("CUDA_VISIBLE_DEVICES=0,1", "CUDA_VISIBLE_DEVICES"), "without a value");
  check_void(with("=0,1", "=0\t1"), "control characters");
  check_void(with("=0,1", std::string("=0\0001", 4)), "control characters");
  check_void(with("=0,1", "=\x1b[2J"), "control characters");
  check_void(with("say the node", "say " + std::string(gpu_bind_wire::max_line, 'x')), "too long");
}

TEST_CASE("lists of numbers stay in their range") {
  for (const char* list : {"",           ",",   "0,",   ",0",     "0,,1", "-1",
                           "1-",         "-",   "3-1",  "0-8192", "8192", "99999999999999999999",
                           "4294967296", "0x1", "1 2",  " 1",     "1,0",  "1,1",
                           "0-3,2",      "all", "0-1-2"}) {
    CAPTURE(list);
    CpuBits bits;
    CHECK_FALSE(parse_list(list, bits));
    check_void(with("cpus 0-1,4", std::string("cpus ") + list), "");
  }
  CpuBits bits;
  CHECK(parse_list("0-8191", bits));
  CHECK(bits.test(8191));
  MemBits mems;
  CHECK_FALSE(parse_list("1024", mems));
  CHECK(parse_list("1023", mems));
}

TEST_CASE("unknown variables are dropped, known ones bounded") {
  const Read r(with("env set CUDA_VISIBLE_DEVICES=0,1",
                    "env set LD_PRELOAD=/tmp/x.so\nenv set PATH=/tmp\nenv set "
                    "=x\nenv set CUDA_VISIBLE_DEVICES2=0\nenv set NCCL_SOCKET_IFNAME="));
  REQUIRE_MESSAGE(r.ok, r.reason());
  const plugin::RankPlan plan = r.answer.plan(0);
  REQUIRE(plan.variable_count == 2);
  CHECK(std::string(plan.variables[1].name) == "NCCL_SOCKET_IFNAME");
  CHECK(plan.variables[1].value.empty());

  const auto taken = [](const std::string& line) {
    const Read one(with("env set CUDA_VISIBLE_DEVICES=0,1", line));
    REQUIRE_MESSAGE(one.ok, one.reason());
    return one.answer.plan(0).variable_count == 2;
  };
  for (const char* name : {"FI_PROVIDER", "NCCL_DEBUG", "UCX_TLS", "OFI_NCCL_PROTOCOL", "GLOO_X9"})
    CHECK_MESSAGE(taken(std::string("env keep ") + name + "=v"), name);
  for (const char* name : {"FI_", "NCCL_CONF_FILE", "NCCL_ld", "NCCL_X Y", "XNCCL_A", "FI-A",
                           "GPU_BIND_SET", "HOME", "LD_LIBRARY_PATH", "NCCL_\\", "SLURM_CONF"})
    CHECK_MESSAGE(!taken(std::string("env set ") + name + "=v"), name);
  CHECK_FALSE(taken("env set NCCL_" + std::string(gpu_bind_wire::max_name, 'A') + "=v"));
  // Only masks are taken away.
  CHECK(taken("env unset CUDA_VISIBLE_DEVICES"));
  CHECK_FALSE(taken("env unset NCCL_DEBUG"));
  CHECK_FALSE(taken("env unset PATH"));
  CHECK_FALSE(taken("env unset CUDA_VISIBLE_DEVICES=0"));

  std::string many;
  for (size_t i = 0; i < gpu_bind_wire::max_env; ++i) many += "env set NCCL_IB_HCA=a\n";
  check_void(with("say rank zero\n", many), "too many variables");
}

TEST_CASE("what is printed has no control characters") {
  const Read r(with("say rank zero", "say \x1b]0;title\x07zero\x7f\x80"));
  REQUIRE(r.ok);
  CHECK(texts(r.answer.rank(0)) == Strings{"?]0;title?zero??"});
}

TEST_CASE("damaged answers are void or harmless") {
  std::mt19937 random(20240601);
  for (int round = 0; round < 20000; ++round) {
    std::string text = good;
    for (int hits = 1 + static_cast<int>(random() % 4); hits > 0; --hits) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 8);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 16));
      }
      if (text.empty()) break;
    }
    const Read r(text);
    if (!r.ok) {
      CHECK(all_printable(r.why.view()));
      continue;
    }
    for (unsigned i : {0u, 1u})
      for (size_t v = 0; v < r.answer.plan(i).variable_count; ++v)
        CHECK(all_printable(r.answer.plan(i).variables[v].value));
  }
}

// --- Options and what was asked of Slurm ---

TEST_CASE("options take what their help says") {
  const auto all = [](int id, std::initializer_list<const char*> values, bool valid) {
    for (const char* v : values) {
      CAPTURE(v);
      CHECK(valid_option(id, v) == valid);
    }
  };
  all(policy, {"auto", "closest", "off", "map:0", "map:3,2,1,0", "map:0*2,4095*1024"}, true);
  all(policy,
      {"",       "help",   "AUTO",    "auto ",      "au",       "auto,off",  "map",
       "map:",   "map:,",  "map:0,",  "map:,0",     "map:0,,1", "map:-1",    "map:0-3",
       "map:0*", "map:*2", "map:0*0", "map:0*1025", "map:4096", "map:0*2*2", "map:99999999999",
       "map:0 ", "map:0x1"},
      false);
  all(visible, {"ordered", "own", "auto"}, true);
  all(cpu, {"local", "numa", "off", "local,smt=1"}, true);
  all(cpu, {"local,smt=", "off,smt=1", "smt=1", "local,"}, false);
  all(mem, {"preferred", "bind", "off"}, true);
  all(nic, {"auto", "closest", "all", "off", "list:mlx5_0,mlx5_1:1"}, true);
  all(nic, {"list:", "list:../x", "mlx5_0", "list:a\nb"}, false);
  all(env, {"keep", "set", "off"}, true);
  all(report, {"none", "summary", "full", "json", "doctor"}, true);
  all(strict, {"yes", "no"}, true);
  all(strict, {"maybe", "1", "true"}, false);
  const std::string longest = "list:" + std::string(Options::max_value - 6, '1');
  CHECK(valid_option(nic, longest));
  CHECK_FALSE(valid_option(nic, longest + "1"));
  CHECK_FALSE(valid_option(nic, std::string_view("list:0\0001", 8)));
}

TEST_CASE("a wrong option is kept out, and its refusal is one printable line") {
  Options o;
  CHECK_FALSE(o.any());
  CHECK(o.set(policy, "off"));
  CHECK_FALSE(o.set(policy, "nonsense"));
  CHECK(o.get(policy) == "off");
  CHECK_FALSE(o.has(cpu));
  CHECK(o.any());
  CHECK(refusal(policy, false, "bogus").view() ==
        "--gpu-bind-policy=bogus: no such value; use auto, closest, map:<gpus>, off or help");
  const Reason r = refusal(strict, true, "\x1b" + std::string(5000, 'x'));
  CHECK(starts_with(r.view(), "GPU_BIND_STRICT=?xxx"));
  CHECK(all_printable(r.view()));
  CHECK_FALSE(r.cut());
}

TEST_CASE("a wrong option alone still asks for binding") {
  Options o;
  CHECK_FALSE(o.set(report, "everything"));
  CHECK(o.any());
}

TEST_CASE("srun's own words, in each part of a heterogeneous step") {
  const auto own = [](std::vector<const char*> words, std::vector<const char*> command) {
    std::vector<char*> argv;
    for (const char* w : command) argv.push_back(const_cast<char*>(w));
    const WordRange r = options_for(words.data(), static_cast<int>(words.size()), argv.data(),
                                    static_cast<int>(argv.size()));
    return std::vector<std::string>(words.begin() + r.begin, words.begin() + r.end);
  };
  using Words = std::vector<std::string>;
  CHECK(own({"srun", "-n2", "prog", "-x"}, {"/usr/bin/prog", "-x"}) == Words{"srun", "-n2"});
  const std::vector<const char*> parts = {"srun", "-n1", "a", ":", "--gpus-per-task=1", "b", "-n1"};
  CHECK(own(parts, {"a"}) == Words{"srun", "-n1"});
  CHECK(own(parts, {"/b", "-n1"}) == Words{"--gpus-per-task=1"});
  // A command that is not found there: by its length, as if there were one part.
  CHECK(own({"srun", "-n1", "a", "b"}, {"c", "d"}) == Words{"srun", "-n1"});
  CHECK(own({"srun"}, {"c", "d"}).empty());
  CHECK(own({"srun", "-n1"}, {}) == Words{"srun", "-n1"});
}

TEST_CASE("srun's words about GPUs") {
  const auto binds = [](std::initializer_list<const char*> words, const char* variable = nullptr) {
    GpuRequest r;
    r.option("--gpu-bind", variable);
    for (const char* w : words) r.argument(w);
    return r.binds();
  };
  CHECK_FALSE(binds({"srun", "-n2", "--gpus-per-node=2", "--gpu-bind-policy=auto"}));
  CHECK(binds({"srun", "--gpus-per-task=1"}));
  CHECK(binds({"srun", "--gpus-per-task", "1"}));
  CHECK(binds({"srun", "--ntasks-per-gpu=1"}));
  CHECK(binds({"srun", "--gpu-bind=closest"}));
  CHECK(binds({"srun", "--gpu-bind", "single:1"}));
  CHECK(binds({"srun", "--gpu-bind=verbose,closest"}));
  CHECK(binds({"srun", "--tres-bind=gres/gpu:single:1"}));
  CHECK(binds({"srun", "--tres-per-task=cpu:2,gres/gpu:1"}));
  CHECK_FALSE(binds({"srun", "--tres-per-task=cpu:2"}));
  CHECK_FALSE(binds({"srun", "--gpu-bind=none"}));
  CHECK_FALSE(binds({"srun", "--gpu-bind=verbose"}));
  CHECK_FALSE(binds({"srun", "--gpu-bind=verbose,none", "--gpus-per-task=1"}));
  CHECK_FALSE(binds({"srun", "--gpus-per-task=1", "--gpu-bind=none"}));
  CHECK(binds({"srun"}, "closest"));
  CHECK_FALSE(binds({"srun", "--gpu-bind=none"}, "closest"));

  Asked a;
  CHECK(a.text().view() == "none");
  a.cpu = a.gpu = true;
  CHECK(a.text().view() == "cpu,gpu");
  const Asked back = parse_asked("gpu,junk,,cpu");
  CHECK(back.cpu);
  CHECK(back.gpu);
  CHECK_FALSE(back.mem);
  CHECK_FALSE(parse_asked("none").any());
}

// --- The process ---

namespace {

constexpr uid_t nobody = 65534;

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

// --- Files ---

namespace {

bool site(const std::string& path, Site& s, std::string& why, bool must_exist = false) {
  Reason reason;
  s = Site();
  const bool ok = read_site(path.c_str(), must_exist, s, reason);
  why = reason.view();
  return ok;
}

}  // namespace

TEST_CASE("the site's configuration") {
  Temporary dir;
  Site s;
  std::string why;
  const std::string path = dir / "gpu-bind.conf";
  CHECK(site(path, s, why));
  CHECK_FALSE(s.there);
  CHECK_FALSE(site(path, s, why, true));
  CHECK(s.bind == Site::on_request);
  CHECK(s.timeout_ms == 2000);
  CHECK_FALSE(s.strict);

  write_file(path,
             "# bind = off\n\n  bind = always \r\ntopology=/x\nstrict=yes # "
             "loud\ntimeout-ms=\t250\nwords\n");
  REQUIRE_MESSAGE(site(path, s, why), why);
  CHECK(s.there);
  CHECK(s.bind == Site::always);
  CHECK(s.timeout_ms == 250);
  CHECK(s.strict);

  for (const char* wrong : {"bind=maybe", "strict=1", "timeout-ms=0", "timeout-ms=99999999999",
                            "timeout-ms=2s", "bind="}) {
    CAPTURE(wrong);
    write_file(path, std::string("\n") + wrong + "\n");
    CHECK_FALSE(site(path, s, why));
    CHECK(why.find("gpu-bind.conf:2: ") != std::string::npos);
  }
  write_file(path, "bind=off\ncpu=numa\ncpu=local\nbind=always\n");
  CHECK_FALSE(site(path, s, why));
  CHECK(why.find("gpu-bind.conf:4: bind: given before") != std::string::npos);
  write_file(path, std::string(40 * 1024, '#'));
  CHECK_FALSE(site(path, s, why));
}

TEST_CASE("a file for NCCL is named only if it can be read") {
  Temporary dir;
  const std::string path = dir / "topology.xml", link = dir / "link", fifo = dir / "fifo";
  CHECK_FALSE(plugin::readable_file(path.c_str()));
  write_file(path, "<system/>");
  CHECK(plugin::readable_file(path.c_str()));
  REQUIRE(symlink(path.c_str(), link.c_str()) == 0);
  CHECK(plugin::readable_file(link.c_str()));
  REQUIRE(mkfifo(fifo.c_str(), 0644) == 0);
  CHECK_FALSE(plugin::readable_file(fifo.c_str()));
  CHECK_FALSE(plugin::readable_file(dir.path().c_str()));
  CHECK_FALSE(plugin::readable_file(""));
}

TEST_CASE("only the administrator may have written the configuration or the planner") {
  Temporary dir;
  Site s;
  std::string why;
  const std::string path = dir / "gpu-bind.conf", link = dir / "link";
  Reason reason;
  write_file(path, "bind=always\n");
  CHECK(site(path, s, why));
  REQUIRE(symlink(path.c_str(), link.c_str()) == 0);
  CHECK_FALSE(site(link, s, why));
  CHECK(why == link + ": is a symbolic link; it must be a file that every user can read");

  for (const mode_t mode : {0666, 0664, 0646}) {
    REQUIRE(chmod(path.c_str(), mode) == 0);
    CHECK_FALSE(site(path, s, why));
    CHECK_FALSE(trusted_program(path.c_str(), reason));
  }
  REQUIRE(chmod(path.c_str(), 0711) == 0);
  CHECK(trusted_program(path.c_str(), reason));

  REQUIRE(chmod(dir.path().c_str(), 0777) == 0);
  CHECK_FALSE(site(path, s, why));
  CHECK_FALSE(trusted_program(path.c_str(), reason));
  REQUIRE(chmod(dir.path().c_str(), 01777) == 0);
  CHECK(trusted_program(path.c_str(), reason));

  CHECK_FALSE(trusted_program("gpu-bind", reason));
  CHECK_FALSE(trusted_program("/nonexistent", reason));
  CHECK_FALSE(trusted_program("/", reason));
  CHECK_FALSE(trusted_program("/dev/null", reason));
  CHECK_FALSE(site("/dev/zero", s, why));

  const std::string fifo = dir / "fifo";
  REQUIRE(mkfifo(fifo.c_str(), 0644) == 0);
  CHECK_FALSE(site(fifo, s, why));  // and does not hang
}

TEST_CASE("what a user owns, or could replace, is not the administrator's") {
  if (getuid() != 0) {
    MESSAGE("skipped: only root can give files away");
    return;
  }
  Temporary dir;
  Site s;
  std::string why;
  Reason reason;
  const std::string path = dir / "gpu-bind.conf";
  write_file(path, "bind=always\n");
  REQUIRE(chown(path.c_str(), nobody, 0) == 0);
  CHECK_FALSE(site(path, s, why));
  CHECK_FALSE(trusted_program(path.c_str(), reason));
  REQUIRE(chown(path.c_str(), 0, 0) == 0);
  REQUIRE(chown(dir.path().c_str(), nobody, 0) == 0);
  CHECK_FALSE(site(path, s, why));
  CHECK(why == path + ": its directory " + dir.path() + " does not belong to root");
  REQUIRE(chown(dir.path().c_str(), 0, 0) == 0);
  CHECK(site(path, s, why));

  // As named, too: the way there must be root's.
  Temporary theirs;
  const std::string way = theirs / "way", through = way + "/gpu-bind.conf";
  REQUIRE(symlink(dir.path().c_str(), way.c_str()) == 0);
  CHECK(site(through, s, why));
  CHECK(trusted_program(through.c_str(), reason));
  REQUIRE(lchown(way.c_str(), nobody, 0) == 0);
  CHECK_FALSE(site(through, s, why));
  CHECK(why == through + ": its directory " + way + " does not belong to root");
  CHECK_FALSE(trusted_program(through.c_str(), reason));
  REQUIRE(lchown(way.c_str(), 0, 0) == 0);
  REQUIRE(chmod(theirs.path().c_str(), 0777) == 0);
  CHECK_FALSE(site(through, s, why));
  CHECK(why == through + ": others than root can write its directory " + theirs.path());
  CHECK_FALSE(trusted_program(through.c_str(), reason));
  REQUIRE(chmod(theirs.path().c_str(), 0755) == 0);
  // A link to root's program is root's only where the link is.
  const std::string link = theirs / "link";
  REQUIRE(symlink(path.c_str(), link.c_str()) == 0);
  CHECK(trusted_program(link.c_str(), reason));
  REQUIRE(lchown(link.c_str(), nobody, 0) == 0);
  CHECK_FALSE(trusted_program(link.c_str(), reason));
}

TEST_CASE("what nccl.conf sets is found as NCCL finds it") {
  Temporary dir;
  static NcclConf conf;
  write_file(dir / ".nccl.conf", "#NCCL_IB_HCA=x\n NCCL_TOPO_FILE=/y\nNCCL_SOCKET_IFNAME==eth0\n");
  conf.read(nullptr, dir.path().c_str());
  CHECK(conf.sets("NCCL_SOCKET_IFNAME"));
  CHECK_FALSE(conf.sets("NCCL_SOCKET"));
  CHECK_FALSE(conf.sets("NCCL_IB_HCA"));
  CHECK_FALSE(conf.sets("NCCL_TOPO_FILE"));

  write_file(dir / "mine", "NCCL_IB_HCA=mlx5_9");
  conf.read((dir / "mine").c_str(), dir.path().c_str());
  CHECK(conf.sets("NCCL_IB_HCA"));
  CHECK_FALSE(conf.sets("NCCL_SOCKET_IFNAME"));

  const std::string fifo = dir / "fifo";
  REQUIRE(mkfifo(fifo.c_str(), 0644) == 0);
  for (const char* odd : {fifo.c_str(), "/dev/zero", "/", "/nonexistent", ""}) {
    CAPTURE(odd);
    conf.read(odd, nullptr);
    CHECK_FALSE(conf.sets("NCCL_SOCKET_IFNAME"));
  }
  write_file(dir / "huge", std::string(1 << 20, 'x') + "\nNCCL_IB_HCA=1\n");
  conf.read((dir / "huge").c_str(), nullptr);
  CHECK_FALSE(conf.sets("NCCL_IB_HCA"));
}

// --- Applying ---

TEST_CASE("a mask is never emptied, and widened only where the plan may replace it") {
  CpuBits before, now, none_such;
  auto* const set = reinterpret_cast<cpu_set_t*>(before.word);
  REQUIRE(sched_getaffinity(0, sizeof before.word, set) == 0);
  const std::vector<int> allowed = members(before);
  const auto mask = [&] {
    REQUIRE(sched_getaffinity(0, sizeof now.word, reinterpret_cast<cpu_set_t*>(now.word)) == 0);
    return members(now);
  };

  Reason why;
  none_such.set(8191);  // no machine of ours has it
  for (const Within within : {Within::mask, Within::cpuset}) {
    CHECK_FALSE(apply_cpus(none_such, within, why));
    CHECK(starts_with(why.view(), "CPUs 8191 are not among its allowed ones"));
    CHECK(mask() == allowed);
  }

  CpuBits first, last = none_such;
  first.set(allowed.front());
  last.set(allowed.back());
  CHECK(apply_cpus(last, Within::mask, why));
  CHECK(mask() == std::vector<int>{allowed.back()});
  if (allowed.size() > 1) {
    CHECK_FALSE(apply_cpus(first, Within::mask, why));
    CHECK(mask() == std::vector<int>{allowed.back()});
    CHECK(apply_cpus(first, Within::cpuset, why));
    CHECK(mask() == std::vector<int>{allowed.front()});
  }
  // A failure does not leave it wide.
  const std::vector<int> narrow = mask();
  CHECK_FALSE(apply_cpus(none_such, Within::cpuset, why));
  CHECK(mask() == narrow);
  REQUIRE(sched_setaffinity(0, sizeof before.word, set) == 0);
}

TEST_CASE("memory policies that the kernel refuses are told, not fatal") {
  MemBits none_such;
  none_such.set(1023);
  Reason why;
  CHECK(apply_mems(MemPolicy::leave, none_such, why));
  CHECK_FALSE(apply_mems(MemPolicy::bind, none_such, why));
  CHECK(starts_with(why.view(), "memory nodes 1023: "));
}
