// The work of gpu_bind.so's hooks, by the process of Slurm that does it, and what such a process
// remembers from one hook to the next. Nothing here fails or throws: the first error is kept.
#pragma once

#include "answer.h"
#include "apply.h"
#include "asked.h"
#include "options.h"
#include "text.h"
#include "wire.h"

// The header declares the hooks outside of its extern "C".
#pragma GCC visibility push(default)
extern "C" {
#include <slurm/slurm.h>
#include <slurm/spank.h>
}
#pragma GCC visibility pop

namespace trainlaunch::plugin {

struct State {
  const char* planner = TL_LIBEXECDIR "/gpu-bind";
  const char* config = TL_SYSCONFDIR "/slurm/gpu-bind.conf";
  bool config_named = false;    // in plugstack.conf: then it must be there
  const char* cache = nullptr;  // a directory; null: none
  Options options;
  bool strict = false;
  Asked asked;
  Within within = Within::mask;
  Reason error;          // the first; empty: none
  bool planned = false;  // `answer` holds a plan
  Answer answer;         // looks into `answer_text`
  Fixed<8192> words;     // what the planner was told of this node's part of the job step
};
extern State state;

inline void keep_error(const Reason& why) {
  if (state.error.empty()) state.error = why;
}

// --- The environment of the job. ---

enum class Found { no, yes, cut };

template <size_t N>
Found get_env(spank_t sp, const char* name, char (&value)[N]) {
  const int rc = spank_getenv(sp, name, value, N);
  return rc == ESPANK_SUCCESS ? Found::yes : rc == ESPANK_NOSPACE ? Found::cut : Found::no;
}

inline bool has_env(spank_t sp, const char* name) {
  char value[8];
  return get_env(sp, name, value) != Found::no;
}

// Slurm's name of this node.
Fixed<256> node_name(spank_t sp) noexcept;

// In slurmstepd, once for each node and job step: asks the planner, where binding is wanted.
void plan_step(spank_t sp) noexcept;

// In slurmd, which is root: the planner looks at the machine once, for all job steps to come. It
// looks as nobody, and while slurmd goes on; if it fails, job steps look for themselves.
void fill_cache() noexcept;

// In the task itself: applies the rank's part of the plan, or stops the job step under strict.
void bind_rank(spank_t sp) noexcept;

}  // namespace trainlaunch::plugin
