// The process that srun starts in every task: the PMIx client. It joins the others, starts its
// worker, forwards what the worker asks, and sees to it that all ranks end together, with one exit
// code and with no process left behind.
//
// How it ends:
//   - every worker exits with 0 or 75 (requeue): all wait for the last one, and share the largest
//     code.
//   - a worker fails: the first failure counts (hub.h). All other workers get SIGTERM and, five
//     seconds later, SIGKILL; rank 0 says once who failed and why, and ends the job step with the
//     worker's exit code, or 128+n after signal n, at the latest 20 seconds after the failure.
//   - SIGTERM, SIGINT, SIGHUP or SIGQUIT: handed on to the worker. If it then exits with 0 or 75,
//     that is its code, otherwise 143 (and a failure). SIGUSR1 and SIGUSR2 are handed on, no more.
//   - a supervisor is lost: a failure, with code 1.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "boot/boot.h"

namespace trainlaunch {

struct Job {
  std::string path;               // the worker's program, as in execvp(3)
  std::vector<std::string> argv;  // its arguments, from its name on
  // engine: this program again, which talks to its supervisor. command: any program, which is told
  // its place by torchrun's variables RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR
  // and MASTER_PORT.
  enum class Kind { engine, command } kind = Kind::engine;
  std::vector<int> given;  // open_descriptors() at the start of main()
};

// Runs to the end; returns the exit code.
int supervise(const Job& job);

// The variables that a command is given.
std::vector<std::pair<std::string, std::string>> place_variables(const World& world,
                                                                 const std::string& main_address,
                                                                 int main_port);

// One line on standard error: "train-launch: TEXT".
void say(const std::string& text);

}  // namespace trainlaunch
