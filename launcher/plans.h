// Whether the binding plans of the job's nodes go together. gpu_bind.so sees one node only; what it
// leaves in each rank, GPU_BIND_PLAN, says enough to compare them.
#pragma once

#include <string>
#include <vector>

#include "boot/boot.h"
#include "boot/bootstrap.h"
#include "boot/session.h"

namespace trainlaunch {

// What this rank tells the others of its node's plan; empty: nothing, or another rank of the node
// tells it.
std::string plan_word(const World& world, const Environment& environment);

// One line for each way in which the nodes differ, with their names, from what every rank told.
// Plans need not be equal: ports may have other names and CPUs other numbers on each node.
std::vector<std::string> plan_differences(const World& world,
                                          const std::vector<std::string>& words);

// Tells every rank's word to every other; on rank 0 the differences are printed. Every rank of the
// job calls this, or none.
Status compare_plans(Session& session, const Environment& environment, Deadline deadline);

}  // namespace trainlaunch
