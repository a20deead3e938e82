// What the user asked of Slurm itself: --cpu-bind, --mem-bind, --gpu-bind and what implies them.
// Only srun knows; in slurmstepd an explicit --cpu-bind=cores and Slurm's own choice look the same.
// srun's side writes it to GPU_BIND_ASKED, a list of cpu, mem and gpu, or none.
#pragma once

#include <string_view>

#include "text.h"

namespace trainlaunch::plugin {

struct Asked {
  bool cpu = false, mem = false, gpu = false;
  bool any() const { return cpu || mem || gpu; }
  Fixed<16> text() const;  // "cpu,gpu"; "none"
};

Asked parse_asked(std::string_view text);

// A value of --gpu-bind that makes Slurm choose GPUs: not none, and more than verbose.
bool binds_gpus(std::string_view gpu_bind);

// Of the words of srun's command line, those of its options [begin, end) for the command `argv`. In
// a heterogeneous step a word ":" stands between the parts, each of which has options and a
// command.
struct WordRange {
  int begin = 0, end = 0;
};
WordRange options_for(const char* const* words, int count, char* const* argv, int argc);

// Whether Slurm will choose GPUs for tasks, gathered from srun's environment and then its
// arguments.
class GpuRequest {
 public:
  // An option by its long name, "--gpu-bind"; others are ignored. A null value: not given.
  void option(std::string_view name, const char* value);
  // The next word of the command line.
  void argument(const char* word);
  bool binds() const { return explicit_ ? binds_ : implied_; }

 private:
  std::string_view pending_;  // an option whose value is the next word
  bool explicit_ = false, binds_ = false, implied_ = false;
};

}  // namespace trainlaunch::plugin
