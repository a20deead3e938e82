// What make_comm() chooses from, besides Hierarchy.
#pragma once

#include <memory>

#include "comm/comm.h"

namespace trainlaunch {

std::unique_ptr<Comm> make_single_comm();

}  // namespace trainlaunch
