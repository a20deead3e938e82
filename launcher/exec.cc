#include <cstdio>

#include "launcher/commands.h"
#include "launcher/supervisor.h"

namespace trainlaunch {
namespace {

constexpr const char* help =
    R"(usage: train-launch exec -- COMMAND [ARGUMENT...]

Runs COMMAND once per task as part of one whole: the first failure ends all of them, and its exit
code is that of srun. COMMAND finds its place in the environment, as under torchrun: RANK,
WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
)";

}  // namespace

Result<int> run_exec(const Invocation& call) {
  std::vector<std::string> command = call.arguments;
  if (wants_help(command)) {
    std::fputs(help, stdout);
    return exit_code::done;
  }
  if (!command.empty() && command.front() == "--")
    command.erase(command.begin());
  else if (!command.empty() && command.front().starts_with('-'))
    return fail("exec: no option " + command.front() + "; use: train-launch exec -- COMMAND",
                exit_code::usage);
  if (command.empty())
    return fail("exec: no command; use: train-launch exec -- COMMAND", exit_code::usage);
  Job job;
  job.path = command.front();
  job.argv = std::move(command);
  job.kind = Job::Kind::command;
  job.given = call.given;
  return supervise(job);
}

}  // namespace trainlaunch
