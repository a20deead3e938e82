#include "train/train.h"

#include <sys/mman.h>
#include <sys/prctl.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "base/caught.h"
#include "base/file.h"
#include "boot/hub.h"
#include "boot/worker.h"
#include "launcher/commands.h"
#include "launcher/options.h"
#include "launcher/supervisor.h"
#include "train/run_plan.h"

namespace trainlaunch {
namespace {

constexpr const char* usage = R"(usage: train-launch train CONFIG [--section.key=value...]
       train-launch train CONFIG --plan [--ranks=N] [--nodes=M] [--section.key=value...]

Trains a model as the file CONFIG says, on all tasks of the job step:

  srun --mpi=pmix train-launch train run.conf --model.layers=12

With --plan it only says what such a run needs and moves, on one process without a job.
CONFIG has lines "key = value" below lines "[section]"; the command line wins.

)";

// A pipe can be read once, and the worker has to read the configuration too: both get a copy.
Status copy_pipe(std::string& file, Job& job) {
  std::error_code unknown;
  if (!std::filesystem::is_fifo(file, unknown)) return {};
  auto text = read_text(file);
  if (!text) return forward(text);
  const int copy = ::memfd_create("configuration", 0);
  if (copy < 0) return fail_errno("memfd_create");
  if (auto s = write_fully(copy, text->data(), text->size(), "a copy of " + file); !s) return s;
  const std::string name = "/dev/fd/" + std::to_string(copy);
  std::replace(job.argv.begin() + 2, job.argv.end(), file, name);
  job.given.push_back(copy);
  file = name;
  return {};
}

struct Plan {
  bool wanted = false;
  Site site;
};

void add_plan_options(OptionTable& t, Plan& plan) {
  constexpr int64_t most = 1 << 20;
  t.command_group("Planning");
  t.flag("plan", &plan.wanted, "say what the run needs and moves; train nothing");
  t.whole("ranks", &plan.site.ranks, 1, most, "of the run that is planned");
  t.whole("nodes", &plan.site.nodes, 1, most, "that they lie on");
  t.real("network", &plan.site.network, 0.001, 1e6, "GB/s of a node, each way, to plan with");
}

Result<int> say_plan(const RunConfig& config, const Site& site) {
  auto plan = plan_run(config, site);
  if (!plan) return forward(plan);
  for (const std::string& line : plan->lines) std::puts(line.c_str());
  if (!plan->fits) {
    std::fflush(stdout);
    return forward(plan->fits);
  }
  return all_written();
}

// Of the options that only a plan knows.
Status check_plan(const Plan& plan) {
  const Site usual;
  const char* given = plan.site.ranks != usual.ranks       ? "--ranks"
                      : plan.site.nodes != usual.nodes     ? "--nodes"
                      : plan.site.network != usual.network ? "--network"
                                                           : nullptr;
  if (plan.wanted || !given) return {};
  return fail(std::string(given) +
                  " says nothing without --plan: a run has the ranks that srun or mpirun starts",
              exit_code::usage);
}

Result<int> work(const RunConfig& config) {
  prctl(PR_SET_NAME, "train-worker");  // not "exe", in ps and top
  ::signal(SIGPIPE, SIG_IGN);          // whoever read the progress lines may go
  auto control = make_worker_control();
  if (!control) return forward(control);
  if (Status s = caught([&] { return train(config, **control); }); !s) {
    if (!(*control)->failed(s.error().what)) return forward(s);
    return s.error().exit;
  }
  return exit_code::done;
}

}  // namespace

Result<int> run_train(const Invocation& call) {
  RunConfig config;
  std::string file;
  OptionTable table("train-launch train");
  Plan plan;
  table.positional("CONFIG", &file);
  add_plan_options(table, plan);
  add_run_options(table, config);
  if (wants_help(call.arguments)) {
    std::fputs((usage + table.help()).c_str(), stdout);
    return exit_code::done;
  }
  if (Status s = table.read_command_line(call.arguments); !s) return forward(s);
  Job job;
  job.path = "/proc/self/exe";
  job.argv = call.words;
  job.given = call.given;
  if (Status s = copy_pipe(file, job); !s) return forward(s);
  if (Status s = table.read_file(file); !s) return forward(s);
  if (Status s = check_plan(plan); !s) return forward(s);
  if (plan.wanted) return say_plan(config, plan.site);
  if (is_worker()) return work(config);
  return supervise(job);
}

}  // namespace trainlaunch
