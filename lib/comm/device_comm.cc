#include "comm/device_comm.h"

#include <algorithm>

#include "comm/kinds.h"

namespace trainlaunch {

Result<std::unique_ptr<Comm>> make_device_comm(Control& control,
                                               const std::vector<int>& local_sockets,
                                               const CommOptions& options, DeviceParts parts) {
  if (control.world().size == 1) return make_single_comm(parts.device);
  const Deadline deadline = Deadline::in(options.timeout);
  auto identities = control.gather("communicator: devices", parts.identity, deadline);
  if (!identities) return forward(identities);
  std::sort(identities->begin(), identities->end());
  const bool apart =
      std::adjacent_find(identities->begin(), identities->end()) == identities->end();
  auto usable = control.vote("communicator: nccl", static_cast<bool>(parts.nccl), deadline);
  if (!usable) return forward(usable);
  if (apart && *usable) {
    const auto make = parts.nccl;
    return make(control, options, std::move(parts));
  }

  auto inner = make_comm(control, local_sockets, options);
  if (!inner) return forward(inner);
  return make_staged_comm(std::move(*inner), parts.device, options);
}

}  // namespace trainlaunch
