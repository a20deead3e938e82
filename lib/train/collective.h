// When one rank cannot go on, none can: the ranks tell each other, and all return the same error.
#pragma once

#include "base/base.h"
#include "boot/boot.h"

namespace trainlaunch {

// Collective. `mine` is how this rank fared with `what`.
Status all_well(Control& control, std::string_view what, const Status& mine);

template <class T>
Status all_well(Control& control, std::string_view what, const Result<T>& mine) {
  return all_well(control, what, mine ? Status() : Status(tl::unexpected<Error>(mine.error())));
}

}  // namespace trainlaunch
