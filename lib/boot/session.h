// The supervisor's side of a job step: rank 0 opens the hub and shares its place and a fresh secret
// through the bootstrap; every rank joins; the ranks of each node connect their workers.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "boot/bootstrap.h"
#include "boot/hub.h"
#include "boot/link.h"

namespace trainlaunch {

struct Session {
  World world;
  std::unique_ptr<Hub> hub;       // in rank 0
  std::optional<Link> link;       // always there once open_session() has returned
  std::vector<Fd> local_sockets;  // for the worker, by local rank; see WorkerControl
  std::string main_address;       // of rank 0's node, as another node reaches it
  int main_port = 0;              // of rank 0's node, free a moment ago
};

// `version`: of this program; ranks of another version are refused.
Result<Session> open_session(Bootstrap& bootstrap, const std::string& version, Pace pace,
                             Deadline deadline);

}  // namespace trainlaunch
