// The eight --gpu-bind-* options and the GPU_BIND_* variables of the same meaning. One table serves
// srun, sbatch and salloc (checked there, so that a typing error stops the command) and slurmstepd
// (checked again: what arrives there came from the user's side).
#pragma once

#include <string_view>

#include "text.h"

namespace trainlaunch::plugin {

enum OptionId { policy, visible, cpu, mem, nic, env, report, strict, option_count };

struct OptionInfo {
  const char* name;      // "gpu-bind-policy"; the planner's own name is what follows gpu-bind-
  const char* variable;  // "GPU_BIND_POLICY"
  const char* arg;       // how --help shows the value
  const char* usage;     // one sentence for --help
  const char* values;    // what is accepted, for the line that refuses something else
  const char* help;      // what --gpu-bind-NAME=help prints
};

const OptionInfo& option_info(int id);
std::string_view planner_name(int id);

// Does the table accept this value? `help` is no value: it is answered where the user is.
bool valid_option(int id, std::string_view value);

class Options {
 public:
  static constexpr size_t max_value = 1024;

  // False, and no value kept, if it is not accepted.
  bool set(int id, std::string_view value);
  bool has(int id) const { return !values_[id].empty(); }
  std::string_view get(int id) const { return values_[id].view(); }
  // Has any been asked for, be it with a wrong value?
  bool any() const { return any_; }

 private:
  Fixed<max_value> values_[option_count];
  bool any_ = false;
};

// "--gpu-bind-policy=x: not a value it takes; ..." with x made safe to print.
Reason refusal(int id, bool from_variable, std::string_view value);

}  // namespace trainlaunch::plugin
