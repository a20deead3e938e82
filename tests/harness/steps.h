// Job steps on the stand-in for slurmstepd (slurmstepd.cc), as tests describe and see them.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "../unit/temporary.h"

namespace harness {

using Json = nlohmann::json;
using Strings = std::vector<std::string>;

// The program and the plugin that it loads: as installed, and with sanitizers where the compiler
// has them.
struct Build {
  std::string name, program, plugin;
};
std::vector<Build> builds();

// What the program of a rank would find.
struct Rank {
  std::map<std::string, std::string> env;
  std::string cpus, memory;  // as the kernel lists them; policy and nodes
};

// What came of it.
struct Outcome {
  int status = -1;  // of the program; 128 + N: a signal ended it
  std::string out, err;
  std::vector<Json> events;

  Strings changed() const;  // by the hooks outside of ranks
  Strings logged() const;
  std::optional<Rank> rank(int i) const;  // none: its program was never started
  int rank_status(int i) const;
  bool drained() const;  // or failed: Slurm took an answer for an error
  bool answered_zero() const;
};

class Step {
 public:
  explicit Step(const Build& build);

  // Puts `script` in the planner's place; `sh` runs it.
  void planner(const std::string& script);
  // An answer in order, with these lines for each rank.
  void answer(const Strings& ranks);
  void config(const std::string& text);

  Outcome run();
  void start();
  pid_t pid() const { return pid_; }
  Outcome finish();

  Json request;                    // what slurmstepd.cc takes; an ordinary step of two ranks
  Strings words;                   // on the command line
  std::function<void()> in_child;  // before the program starts
  std::string planner_path, config_path;
  trainlaunch::Temporary dir;

 private:
  Build build_;
  pid_t pid_ = -1;
};

// The user whose steps these are.
uid_t user();

}  // namespace harness
