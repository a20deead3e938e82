// The communicators that make_comm() chooses from.
#pragma once

#include <memory>

#include "comm/comm.h"

namespace trainlaunch {

std::unique_ptr<Comm> make_single_comm();

}  // namespace trainlaunch
