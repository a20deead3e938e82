// How supervisors find each other: through a PMIx server (Slurm, mpirun), or not at all (alone).
// The bootstrap carries one message, from rank 0 to all, and the exit code; everything else goes
// over the control channel.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "boot/boot.h"

namespace trainlaunch {

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual const World& world() const = 0;
  // Collective: returns rank 0's bytes on every rank, after every rank has called it.
  virtual Result<std::string> share(std::string_view from_rank0, Deadline deadline) = 0;
  // Ends the whole job step with this code, whatever the other ranks do. May return.
  virtual void abort(int code) = 0;
  // Takes leave of the launcher. An error: it did not answer in time.
  virtual Status finalize(Deadline deadline) = 0;
};

// An environment variable's value, or null.
using Environment = std::function<const char*(const char* name)>;
const char* system_environment(const char* name);

// What started this process? Errors (exit code 2) are for people who started it the wrong way, and
// say how to start it: in several tasks without PMIx, or beside the tasks that were allocated.
enum class Launcher { pmix, alone };
Result<Launcher> find_launcher(const Environment& env);

// Whether a PMIx server gave this process the world that its job step has.
Status check_world(const Environment& env, std::string_view pmix_namespace, uint32_t pmix_size);

// The rank of this process if its launcher tells without being asked; 0 otherwise. For saying once
// what every rank finds wrong.
int presumed_rank(const Environment& env);

// Numbers the ranks by node, nodes in the order of their lowest PMIx rank, and by PMIx rank within.
// PMIx rank 0 is rank 0.
Result<World> arrange(uint32_t pmix_rank, const std::vector<std::string>& host_of_pmix_rank);

Result<std::unique_ptr<Bootstrap>> make_bootstrap(const Environment& env, Deadline deadline);

}  // namespace trainlaunch
