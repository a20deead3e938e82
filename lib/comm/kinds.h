// What make_comm() chooses from, besides Hierarchy.
#pragma once

#include <memory>

#include "comm/comm.h"

namespace trainlaunch {

// Its memory is the host's, or the device's, which must outlive it.
std::unique_ptr<Comm> make_single_comm();
std::unique_ptr<Comm> make_single_comm(Device& device);

}  // namespace trainlaunch
