// PMIx, used for what every server does: init, put, commit, fence, get, abort, finalize. No events:
// under Slurm PMIx_Notify_event kills the job step. Fences always collect data, because without it
// Slurm's do not wait for other nodes; and they get deadlines of our own, because PMIX_TIMEOUT
// holds within one node only.
#pragma once

#include <memory>

#include "boot/bootstrap.h"

namespace trainlaunch {

// Without PMIx in the build, an error that says so.
Result<std::unique_ptr<Bootstrap>> make_pmix_bootstrap(const Environment& env, Deadline deadline);

}  // namespace trainlaunch
