#include "train/train.h"

#include <sys/mman.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/file.h"
#include "boot/hub.h"
#include "boot/worker.h"
#include "launcher/commands.h"
#include "launcher/options.h"
#include "launcher/supervisor.h"

namespace trainlaunch {
namespace {

constexpr const char* usage = R"(usage: train-launch train CONFIG [--section.key=value...]

Trains a model as the file CONFIG says, on all tasks of the job step:

  srun --mpi=pmix train-launch train run.conf --model.layers=12

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

Result<int> work(const RunConfig& config) {
  prctl(PR_SET_NAME, "train-worker");  // not "exe", in ps and top
  auto control = make_worker_control();
  if (!control) return forward(control);
  if (Status s = train(config, **control); !s) {
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
  table.positional("CONFIG", &file);
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
  if (is_worker()) return work(config);
  return supervise(job);
}

}  // namespace trainlaunch
