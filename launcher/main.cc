// train-launch: sub-commands, and what is common to all of them.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/caught.h"
#include "boot/bootstrap.h"
#include "config.h"
#include "launcher/commands.h"
#include "launcher/supervisor.h"
#include "launcher/worker_process.h"
#include "train/machine.h"

namespace trainlaunch {
namespace {

constexpr const char* help = R"(usage: train-launch COMMAND [ARGUMENT...]

  train CONFIG        train a model, on all tasks of the job step
  report RUN          the loss curve of a run, for the terminal and as RUN/loss.svg
  generate RUN        text from the newest checkpoint of a run
  checkpoint COMMAND  look at, check, compare and exchange checkpoints
  exec -- COMMAND     run any command in every task, as one whole

Under Slurm start it with: srun --mpi=pmix train-launch ...
Each command has a --help. train-launch(1) has the exit codes.
)";

// Of a thread that nobody waits for. The supervisor adds whose it was, and where.
[[noreturn]] void end_in_one_line() {
  try {
    const Status why = caught([]() -> Status {
      if (const auto thrown = std::current_exception()) std::rethrow_exception(thrown);
      return fail("std::terminate() was called");
    });
    say(why.error().what);
  } catch (const std::bad_alloc&) {  // not even for the words
    constexpr std::string_view line = "train-launch: the system gives no more memory\n";
    (void)!::write(STDERR_FILENO, line.data(), line.size());
  }
  std::_Exit(exit_code::failed);
}

int run(Invocation call) {
  if (call.words.size() < 2) {
    say("no command; see train-launch --help");
    return exit_code::usage;
  }
  const std::string name = call.words[1];
  if (name == "--help" || name == "-h") {
    std::fputs(help, stdout);
    return all_written();
  }
  if (name == "--version") {
    std::printf("%s\n%s\n", PACKAGE_STRING, built_in().c_str());
    return all_written();
  }
  const std::map<std::string, Result<int> (*)(const Invocation&)> commands{
      {"checkpoint", run_checkpoint},
      {"exec", run_exec},
      {"generate", run_generate},
      {"report", run_report},
      {"train", run_train}};
  const auto command = commands.find(name);
  if (command == commands.end()) {
    say("no command '" + name + "'; see train-launch --help");
    return exit_code::usage;
  }
  call.arguments.assign(call.words.begin() + 2, call.words.end());
  const auto code = caught([&] { return command->second(call); });
  if (code) {
    // A run has done its work whatever became of its progress lines.
    const bool ran = (name == "train" || name == "exec") && !wants_help(call.arguments);
    // An answer may be "damaged" or "different" too; what matters more is that it was given.
    const int written = ran ? exit_code::done : all_written();
    return written == exit_code::done ? *code : written;
  }
  // Wrong usage is the same in every task: one line is enough.
  if (code.error().exit != exit_code::usage || presumed_rank(system_environment) == 0)
    say(code.error().what);
  return code.error().exit;
}

}  // namespace

int all_written() {
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return exit_code::done;
  say("cannot write to standard output: the disk may be full");
  return exit_code::failed;
}

bool wants_help(const std::vector<std::string>& arguments) {
  for (const std::string& a : arguments) {
    if (a == "--") return false;
    if (a == "--help" || a == "-h") return true;
  }
  return false;
}

}  // namespace trainlaunch

int main(int argc, char** argv) {
  std::set_terminate(trainlaunch::end_in_one_line);
  trainlaunch::Invocation call;
  call.given = trainlaunch::open_descriptors();
  call.words.assign(argv, argv + argc);
  return trainlaunch::run(std::move(call));
}
