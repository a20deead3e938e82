// What one rank gets of the plan: its CPU mask and its memory policy, set for the calling thread.
// Always within what it was allowed before.
#pragma once

#include "answer.h"
#include "text.h"

namespace trainlaunch::plugin {

// The CPUs of `want` that are allowed now become the mask. None of them allowed: the mask stays,
// and the answer is false with the reason, as for any failure.
bool apply_cpus(const CpuBits& want, Reason& why);

bool apply_mems(MemPolicy policy, const MemBits& nodes, Reason& why);

}  // namespace trainlaunch::plugin
