// gpu_bind.so under a stand-in for Slurm's programs: whatever the user and the machine do, no hook
// fails, slurmstepd stays as it was, and ranks get the plan or nothing. Every case runs with the
// plugin as it is installed, and with one built under sanitizers.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "checks.h"
#include "steps.h"

using namespace harness;
using trainlaunch::read_file;
namespace fs = std::filesystem;

namespace {

std::vector<int> my_cpus() {
  cpu_set_t set;
  REQUIRE(sched_getaffinity(0, sizeof set, &set) == 0);
  std::vector<int> cpus;
  for (int c = 0; c < CPU_SETSIZE; ++c)
    if (CPU_ISSET(static_cast<size_t>(c), &set)) cpus.push_back(c);
  return cpus;
}

}  // namespace

TEST_CASE("whoever loads the plugin and does not ask stays as it was") {
  with_each_build([](const Build& build) {
    for (const bool required : {false, true}) {
      for (const char* context : {"remote", "local", "allocator", "slurmd", "job_script", "odd"}) {
        CAPTURE(std::string(context));
        Step step(build);
        step.planner("touch " + (step.dir / "started"));
        step.request["context"] = context;
        step.request["required"] = required;
        step.request["options"] = Json::object();
        Outcome o = step.run();
        // srun alone is told something: what was asked of it.
        CHECK(o.changed() == (std::string(context) == "local"
                                  ? Strings{"slurm_spank_local_user_init: environment "
                                            "GPU_BIND_ASKED: (none) -> GPU_BIND_ASKED=none"}
                                  : Strings()));
        CHECK(o.status == 0);
        CHECK(o.answered_zero());
        CHECK(all_text(o) == "");
        if (std::string(context) == "remote") check_unbound(o);
        CHECK_FALSE(fs::exists(step.dir / "started"));
      }
    }
  });
}

TEST_CASE("batch, interactive and external steps, and steps without GPUs, start no planner") {
  with_each_build([](const Build& build) {
    Step step(build);
    step.planner("touch " + (step.dir / "started"));
    for (const uint32_t id : {0xfffffffau, 0xfffffffbu, 0xfffffffcu, 0xfffffffdu}) {
      CAPTURE(id);
      step.request["id"] = id;
      step.request["contained"] = id == 0xfffffffcu;
      const Outcome o = step.run();
      check_quiet(o);
      CHECK(all_text(o) == "");
    }
    step.request["id"] = 0;
    step.request["env"].erase("SLURM_STEP_GPUS");
    check_quiet(step.run());
    CHECK_FALSE(fs::exists(step.dir / "started"));
  });
}

TEST_CASE(
    "a plan changes the mask, the memory policy and the environment of ranks, and nothing else") {
  with_each_build([](const Build& build) {
    Step step(build);
    const std::vector<int> cpus = my_cpus();
    const int first = cpus.front(), last = cpus.back();
    step.request["cpus"] = Json::array({{first}, {first}});
    step.answer({"say the node",
                 "rank 0\ncpus " + std::to_string(last) +
                     "\nmems preferred 0\nenv set CUDA_VISIBLE_DEVICES=1,0\nenv keep "
                     "NCCL_IB_HCA==mlx5_1:1\nenv set LD_PRELOAD=/tmp/x.so\nsay rank zero",
                 "rank 1\nenv keep UCX_NET_DEVICES=mlx5_0:1"});
    step.request["env"]["UCX_NET_DEVICES"] = "mine";
    const Outcome o = step.run();
    check_quiet(o);
    CHECK(o.logged() == Strings{"the node"});
    CHECK(o.err == "rank zero\n");

    const auto zero = o.rank(0), one = o.rank(1);
    REQUIRE(zero);
    REQUIRE(one);
    CHECK(zero->cpus.ends_with(std::to_string(last)));
    CHECK(zero->memory != "0 0");
    CHECK(zero->env.at("CUDA_VISIBLE_DEVICES") == "1,0");
    CHECK(zero->env.at("NCCL_IB_HCA") == "=mlx5_1:1");
    CHECK(zero->env.at("GPU_BIND_SET") == "CUDA_VISIBLE_DEVICES,NCCL_IB_HCA");
    CHECK(zero->env.at("GPU_BIND_PLAN") == "beef");
    CHECK_FALSE(zero->env.contains("LD_PRELOAD"));
    CHECK(one->env.at("UCX_NET_DEVICES") == "mine");
    CHECK(one->memory == "0 0");
    for (const Json& e : o.events)
      if (e.value("hook", "") == "slurm_spank_task_init")
        for (const auto& change : e["changed"]) {
          const std::string what = change.get<std::string>();
          const bool meant =
              what.starts_with("Cpus_allowed_list") || what.starts_with("memory policy");
          CHECK_MESSAGE(meant, what);
        }
  });
}

TEST_CASE("hostile options and variables end in one printable line, on the node too") {
  const std::string wild = std::string("\x1b[2J\x07\n%s%n") + std::string(70000, 'A');
  with_each_build([&](const Build& build) {
    for (const char* option :
         {"gpu-bind-policy", "gpu-bind-cpu", "gpu-bind-nic", "gpu-bind-strict"}) {
      CAPTURE(std::string(option));
      for (const std::string& value : {wild, std::string("list:"), std::string()}) {
        Step step(build);
        step.answer({"rank 0", "rank 1"});
        step.request["options"][option] = value;
        const Outcome o = step.run();
        check_quiet(o);
        check_unbound(o);
        REQUIRE(o.logged().size() == 1);
        CHECK(o.logged()[0].size() < 1024);
        CHECK(printable(o.logged()[0]));
      }
    }
    Step step(build);
    step.answer({"rank 0", "rank 1"});
    step.request["options"] = Json::object();
    for (const char* variable :
         {"GPU_BIND_POLICY", "GPU_BIND_NIC", "GPU_BIND_ASKED", "GPU_BIND_SET",
          "SLURM_STEP_NODELIST", "SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN",
          "NCCL_CONF_FILE", "HOME", "SLURM_CPU_BIND_TYPE", "SLURMD_TRES_BIND"})
      step.request["env"][variable] = wild;
    const Outcome o = step.run();
    check_quiet(o);
    REQUIRE(o.logged().size() == 1);
    CHECK(printable(o.logged()[0]));
  });
}

TEST_CASE(
    "srun, sbatch and salloc refuse with one line and status 1, and srun tells what was asked") {
  with_each_build([](const Build& build) {
    for (const char* context : {"local", "allocator"}) {
      Step step(build);
      step.request["context"] = context;
      step.request["options"]["gpu-bind-mem"] = "\x1b[31mall";
      Outcome o = step.run();
      CHECK(o.status == 1);
      CHECK(o.logged() ==
            Strings{"gpu-bind: --gpu-bind-mem=?[31mall: no such value; use preferred, "
                    "bind, off or help"});
      step.request["options"] = {{"gpu-bind-mem", "help"}};
      o = step.run();
      CHECK(o.status == 0);
      CHECK(o.out.starts_with("--gpu-bind-mem="));
      CHECK(o.logged() == Strings());
      step.request["options"] = Json::object();
      step.in_child = [] { setenv("GPU_BIND_CPU", "all", 1); };
      o = step.run();
      CHECK(o.status == 1);
      CHECK(o.logged().size() == 1);
    }
    Step step(build);
    step.request["context"] = "local";
    step.words = {"--gpus-per-task=1", "-n2", "prog", "--gpu-bind=none"};
    step.request["command"] = 2;
    const auto asked = [&] {
      const Outcome o = step.run();
      CHECK(o.status == 0);
      for (const Json& e : o.events)
        if (e.contains("asked")) return e["asked"].get<std::string>();
      return std::string("nothing told");
    };
    CHECK(asked() == "gpu");
    step.words[0] = "--gpus-per-node=2";
    CHECK(asked() == "none");
    step.words.insert(step.words.begin(), 20000, "-v");
    CHECK(asked() == "none");
    step.in_child = [] {
      setenv("SLURM_CPU_BIND_TYPE", "mask_cpu:", 1);
      setenv("SLURM_MEM_BIND_TYPE", "local", 1);
    };
    CHECK(asked() == "cpu,mem");
  });
}

TEST_CASE("limits that slurmstepd inherited break no hook") {
  const struct {
    __rlimit_resource what;
    rlim_t value;
  } limits[] = {{RLIMIT_NOFILE, 8},      {RLIMIT_FSIZE, 1 << 20}, {RLIMIT_CORE, 0},
                {RLIMIT_STACK, 1 << 20}, {RLIMIT_NPROC, 0},       {RLIMIT_CPU, 30}};
  with_each_build([&](const Build& build) {
    for (const auto& l : limits) {
      CAPTURE(l.what);
      // slurmstepd itself is root, whom this one does not bind.
      if (l.what == RLIMIT_NPROC && getuid() != 0) continue;
      Step step(build);
      step.answer({"rank 0", "rank 1"});
      step.in_child = [&] {
        const rlimit lower{l.value, l.value};
        if (setrlimit(l.what, &lower) != 0) _exit(94);
      };
      const Outcome o = step.run();
      check_quiet(o);
      CHECK(o.rank_status(0) == 0);
      CHECK(printable(all_text(o)));
    }
  });
}

TEST_CASE("a slurmstepd without standard streams, or that ignores its children, can ask too") {
  with_each_build([](const Build& build) {
    Step step(build);
    step.answer({"say heard", "rank 0", "rank 1"});
    step.in_child = [] {
      for (const int fd : {0, 1, 2}) close(fd);
      // What is opened first would stand in for standard error.
      for (int i = 0; i < 3; ++i)
        if (open("/dev/null", O_RDWR) != i) _exit(93);
      close(0);
    };
    Outcome o = step.run();
    check_quiet(o);
    CHECK(o.logged() == Strings{"heard"});
    step.in_child = [] { signal(SIGCHLD, SIG_IGN); };
    o = step.run();
    check_quiet(o);
    CHECK(o.logged() == Strings{"heard"});
  });
}

TEST_CASE("slurmd fills the topology cache where it is told to, and stays as it was") {
  if (!root()) return;
  with_each_build([](const Build& build) {
    Step step(build);
    const std::string cache = step.dir / "cache";
    fs::copy(std::string(TL_BUILDDIR) + "/spank/gpu-bind", step.planner_path);
    step.request["context"] = "slurmd";
    step.request["options"] = Json::object();
    check_quiet(step.run());
    CHECK_FALSE(fs::exists(cache));

    step.request["args"].push_back("cache=" + cache);
    const Outcome o = step.run();
    check_quiet(o);
    CHECK(all_text(o) == "");
    for (int i = 0; i < 1000 && !fs::exists(cache + "/topology"); ++i) usleep(10000);
    struct stat st {};
    REQUIRE(stat((cache + "/topology").c_str(), &st) == 0);
    CHECK(st.st_uid == 0);
    CHECK((st.st_mode & 07777) == 0644);

    // A planner that is not to be trusted is not started as root, least of all.
    fs::remove_all(cache);
    chmod(step.planner_path.c_str(), 0777);
    const Outcome refused = step.run();
    check_quiet(refused);
    REQUIRE(refused.logged().size() == 1);
    CHECK(refused.logged()[0].find("the topology cache is not filled: ") != std::string::npos);
    CHECK_FALSE(fs::exists(cache));
  });
}

TEST_CASE("what slurmd starts as root has none of its environment, files and signals") {
  if (!root()) return;
  with_each_build([](const Build& build) {
    Step step(build);
    const std::string seen = step.dir / "seen", done = step.dir / "done";
    step.planner("exec > " + seen +
                 "\necho \"$@\"; tr '\\0' '\\n' < /proc/$$/environ; pwd; umask\n"
                 "grep -E '^Sig(Blk|Ign):' /proc/self/status | tr '\\t' ' '\n"
                 "ps -o pid= -o sid= -p $$ | awk '{ print $1 == $2 ? \"leads\" : \"apart\" }'\n"
                 "ls /proc/self/fd | wc -l; touch " +
                 done);
    step.request["context"] = "slurmd";
    step.request["args"].push_back("cache=/nonexistent");
    step.in_child = [] {
      setenv("LD_PRELOAD_X", "steer", 1);
      signal(SIGUSR1, SIG_IGN);
      if (chdir("/tmp") != 0 || fcntl(1, F_DUPFD, 100) < 0) _exit(92);
    };
    check_quiet(step.run());
    for (int i = 0; i < 1000 && !fs::exists(done); ++i) usleep(10000);
    // ls has its own descriptor of the folder open.
    CHECK(read_file(seen) ==
          "cache --cache=/nonexistent\nPATH=/usr/bin:/bin\nLC_ALL=C\nHOME=/\n/\n0022\n"
          "SigBlk: 0000000000000000\nSigIgn: 0000000000000000\napart\n4\n");
  });
}
