// What one rank gets of the plan: its CPU mask and its memory policy, set for the calling thread.
#pragma once

#include "answer.h"
#include "text.h"

namespace trainlaunch::plugin {

// Within which CPUs a rank is bound: those of its present mask, or all that its cpuset has. Slurm's
// own binding is a mask of the second kind that the plan may replace.
enum class Within { mask, cpuset };

// The CPUs of `want` that are allowed become the mask. None of them allowed: the mask stays, and
// the answer is false with the reason, as for any failure.
bool apply_cpus(const CpuBits& want, Within within, Reason& why);

bool apply_mems(MemPolicy policy, const MemBits& nodes, Reason& why);

}  // namespace trainlaunch::plugin
