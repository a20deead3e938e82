// A program that is to gpu_bind.so what slurmstepd, srun, sbatch and slurmd are: it loads the
// plugin and calls its hooks in Slurm's order, with Slurm's identities, and writes down what each
// of them did to it.
//
//   slurmstepd REQUEST EVENTS [WORD...]
//
// REQUEST is a JSON object: plugin (path), context (remote, local, allocator, slurmd, job_script),
// args (of the line in plugstack.conf), required (as that line says), options (name: value), and
// for a step: uid, gid, groups, id, node, ranks, cores, cpus (the mask of each rank), env,
// contained (a step of the extern kind, which has no ranks); command: how many of the WORDs are the
// user's command. EVENTS gets one JSON object for each line: what was logged, each hook with its
// answer, time and what it changed, and each rank with what it ended up with.

#include <dlfcn.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "process.h"
#include "slurm.h"

#if defined __SANITIZE_ADDRESS__
// A program that ends by the plugin's exit, or whose ranks do, leaves what it holds.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options();
const char* __asan_default_options() { return "detect_leaks=0"; }
#endif

namespace harness {
namespace {

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "slurmstepd: %s: %s\n", what.c_str(), std::strerror(errno));
  std::_Exit(90);
}

class Plugin {
 public:
  explicit Plugin(const Json& step) : required_(step.value("required", false)) {
    handle_ = dlopen(step.at("plugin").get<std::string>().c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (!handle_) {
      std::fprintf(stderr, "slurmstepd: %s\n", dlerror());
      std::_Exit(91);
    }
    for (const auto& arg : step.value("args", Json::array()))
      args_.push_back(strdup(arg.get<std::string>().c_str()));
    args_.push_back(nullptr);
  }

  // What Slurm does with the answer is the caller's; `optional` swallows it.
  int call(const char* hook) {
    spank_f* const function = reinterpret_cast<spank_f*>(dlsym(handle_, hook));
    if (!function) return 0;
    const Process before = look();
    const auto begin = std::chrono::steady_clock::now();
    const int rc = function(nullptr, static_cast<int>(args_.size()) - 1, args_.data());
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    tell({{"hook", hook},
          {"rc", rc},
          {"us", took.count()},
          {"task", slurm.task},
          {"changed", differences(before, look())}});
    return required_ ? rc : 0;
  }

 private:
  void* handle_;
  bool required_;
  std::vector<char*> args_;
};

// Each through the callback that the plugin gave, as srun hands them on.
void hand_over_options(const Json& step, bool remote) {
  const Json options = step.value("options", Json::object());
  for (const auto& [name, value] : options.items())
    for (const spank_option& option : slurm.registered)
      if (name == option.name)
        tell({{"option", name},
              {"rc", option.cb(option.val, value.get<std::string>().c_str(), remote)}});
}

gid_t gid() { return slurm.step.at("gid").get<gid_t>(); }
uid_t uid() { return slurm.step.at("uid").get<uid_t>(); }

void become_user_for_a_while() {
  if (getuid() != 0) return;
  std::vector<gid_t> groups = slurm.step.value("groups", std::vector<gid_t>{gid()});
  if (setgroups(groups.size(), groups.data()) || setegid(gid()) || seteuid(uid())) die("seteuid");
}

void become_root_again() {
  if (getuid() != 0) return;
  if (seteuid(0) || setegid(0)) die("reclaim");
}

void set_mask(const Json& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int c : cpus.get<std::vector<int>>()) CPU_SET(static_cast<size_t>(c), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) die("sched_setaffinity");
}

// What the program of a rank would find.
void tell_rank() {
  Process p = look();
  tell({{"rank", slurm.task},
        {"env", slurm.env},
        {"cpus", p["Cpus_allowed_list"]},
        {"memory", p["memory policy"]},
        {"uid", p["Uid"]}});
}

[[noreturn]] void run_rank(Plugin& plugin, int rank) {
  slurm.task = rank;
  become_root_again();
  if (getuid() == 0 && (setresgid(gid(), gid(), gid()) || setresuid(uid(), uid(), uid())))
    die("setresuid");
  slurm.env["SLURM_LOCALID"] = slurm.env["SLURM_PROCID"] = std::to_string(rank);
  if (slurm.step.contains("cpus")) set_mask(slurm.step["cpus"].at(static_cast<size_t>(rank)));
  if (plugin.call("slurm_spank_task_init") != 0) _exit(1);
  tell_rank();
  _exit(0);
}

void run_ranks(Plugin& plugin) {
  const int ranks = slurm.step.at("ranks").get<int>();
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    if (pid < 0) die("fork");
    if (pid == 0) run_rank(plugin, rank);
    int status = 0;
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status))
      tell({{"ended", rank}, {"signal", WTERMSIG(status)}});
    else
      tell({{"ended", rank}, {"status", WEXITSTATUS(status)}});
  }
}

// slurmstepd has threads by then: of its standard streams, its message port, its accounting.
class Threads {
 public:
  Threads() {
    for (int i = 0; i < 3; ++i)
      std::thread([] {
        for (;;) pause();  // the C library wakes every thread when ids change
      }).detach();
    // Counted before the hooks are.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
};

void run_step(Plugin& plugin) {
  if (plugin.call("slurm_spank_init") != 0) return tell({{"drained", true}});
  hand_over_options(slurm.step, true);
  if (plugin.call("slurm_spank_init_post_opt") != 0) return tell({{"drained", true}});
  if (slurm.step.value("contained", false)) {
    plugin.call("slurm_spank_task_post_fork");
  } else {
    const Threads threads;
    become_user_for_a_while();
    const int rc = plugin.call("slurm_spank_user_init");
    become_root_again();
    if (rc != 0) return tell({{"failed", true}});
    run_ranks(plugin);
    for (int i = 0; i < slurm.step.at("ranks").get<int>(); ++i)
      plugin.call("slurm_spank_task_exit");
  }
  plugin.call("slurm_spank_exit");
}

void run_command(Plugin& plugin) {
  if (plugin.call("slurm_spank_init") != 0) std::exit(2);
  hand_over_options(slurm.step, false);
  if (plugin.call("slurm_spank_init_post_opt") != 0) std::exit(2);
  if (slurm.context == S_CTX_LOCAL && plugin.call("slurm_spank_local_user_init") != 0) std::exit(2);
  const char* asked = getenv("GPU_BIND_ASKED");
  tell({{"asked", asked ? asked : "(none)"}});
  plugin.call("slurm_spank_exit");
}

spank_context_t context_of(const std::string& name) {
  if (name == "remote") return S_CTX_REMOTE;
  if (name == "local") return S_CTX_LOCAL;
  if (name == "allocator") return S_CTX_ALLOCATOR;
  if (name == "slurmd") return S_CTX_SLURMD;
  if (name == "job_script") return S_CTX_JOB_SCRIPT;
  return S_CTX_ERROR;
}

int run(int argc, char** argv) {
  std::ifstream in(argv[1]);
  slurm.step = Json::parse(in);
  slurm.events = open(argv[2], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (slurm.events < 0) die(argv[2]);
  slurm.context = context_of(slurm.step.at("context").get<std::string>());
  const Json env = slurm.step.value("env", Json::object());
  for (const auto& [name, value] : env.items()) slurm.env[name] = value.get<std::string>();
  slurm.cores = slurm.step.value("cores", std::string());
  const int command = slurm.step.value("command", 0);
  slurm.argv.assign(argv + argc - command, argv + argc);
  slurm.argv.push_back(nullptr);

  Plugin plugin(slurm.step);
  switch (slurm.context) {
    case S_CTX_REMOTE:
      run_step(plugin);
      break;
    case S_CTX_SLURMD:
      plugin.call("slurm_spank_init");
      plugin.call("slurm_spank_slurmd_exit");
      break;
    case S_CTX_JOB_SCRIPT:
      plugin.call("slurm_spank_job_prolog");
      plugin.call("slurm_spank_job_epilog");
      break;
    default:
      run_command(plugin);
  }
  return 0;
}

}  // namespace
}  // namespace harness

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: slurmstepd REQUEST EVENTS [WORD...]\n");
    return 2;
  }
  try {
    const int status = harness::run(argc, argv);
    std::fflush(nullptr);
    // The threads never end.
    std::_Exit(status);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "slurmstepd: %s\n", e.what());
    return 90;
  }
}
