// The part of slurmstepd, srun, sbatch and slurmd that a plugin sees: the spank_* and slurm_*
// functions, answered from one table.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

// What is declared in here the plugin finds in this program.
#pragma GCC visibility push(default)
extern "C" {
#include <slurm/slurm.h>
#include <slurm/spank.h>
}
#pragma GCC visibility pop

namespace harness {

using Json = nlohmann::json;

// What the functions answer. `step` is the request that slurmstepd.cc describes.
struct Slurm {
  spank_context_t context = S_CTX_ERROR;
  Json step;
  std::map<std::string, std::string, std::less<>> env;  // of the job, or of one task
  std::string cores;
  std::vector<char*> argv;  // the command's words
  int task = -1;
  std::vector<spank_option> registered;
  int events = -1;  // a file; one JSON object for each line
};
extern Slurm slurm;

void tell(const Json& event);

}  // namespace harness
