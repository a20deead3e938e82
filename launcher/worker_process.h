// A worker: a child in a process group of its own that dies with its supervisor, sees nothing of
// PMIx, and is gone, with all its descendants, when it is swept.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/result.h"

namespace trainlaunch {

// The descriptors that are open now; called at the start of main(), these are the ones that
// train-launch was given, and its worker gets them too.
std::vector<int> open_descriptors();

class WorkerProcess {
 public:
  struct Spec {
    std::string path;               // searched in PATH unless it has a slash
    std::vector<std::string> argv;  // from the program's name on
    std::vector<std::pair<std::string, std::string>> environment;  // added to the own one
    std::vector<int> given;    // descriptors from open_descriptors()
    std::vector<int> inherit;  // further ones, of this process, to hand down
    sigset_t signal_mask{};    // that the worker starts with
    rlimit descriptors{};      // RLIMIT_NOFILE, likewise
  };

  // To be called from the main thread: the worker dies with the thread that started it. Does not
  // wait for the program to load, which a slow file server can make long: see started().
  static Result<WorkerProcess> start(const Spec& spec);

  // To the worker and all processes of its group.
  void signal(int number) const;

  // Collects children that have ended; returns the worker's wait status when it was among them.
  std::optional<int> reap();
  bool running() const { return running_; }

  // Once the worker has ended: whether its program ran at all. Exit codes of an error are those of
  // a shell: 127 when there is no such program, 126 when it cannot run.
  Status started() const;

  // Once the worker has ended: kills what it left behind, also what left its group, and waits.
  void sweep() const;

 private:
  WorkerProcess(pid_t pid, std::string name, Fd heard)
      : pid_(pid), name_(std::move(name)), heard_(std::move(heard)) {}

  pid_t pid_;
  std::string name_;
  Fd heard_;  // says why there was no exec
  bool running_ = true;
};

}  // namespace trainlaunch
