#include "base/result.h"

#include <cerrno>
#include <system_error>

namespace trainlaunch {

tl::unexpected<Error> fail_errno(const std::string& what, int exit) {
  return fail(what + ": " + std::generic_category().message(errno), exit);
}

}  // namespace trainlaunch
