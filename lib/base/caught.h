// Exceptions of libraries, and the system's through them (no memory, no thread), where they would
// otherwise end the process: there they become errors like any other.
#pragma once

#include <new>
#include <system_error>

#include "base/result.h"

namespace trainlaunch {

// What f returns, a Result, or an error that says what it threw.
template <class F>
auto caught(const F& f) -> decltype(f()) {
  try {
    try {
      return f();
    } catch (const std::bad_alloc&) {
      return fail("the system gives no more memory; see ulimit -v and the job's memory limit");
    } catch (const std::system_error& e) {
      return fail(std::string("the system refuses what the program needs: ") + e.what() +
                  "; see ulimit -a");
    } catch (const std::exception& e) {
      return fail(std::string("unexpected: ") + e.what());
    }
  } catch (const std::bad_alloc&) {
    return fail("out of memory");  // so short that it takes none
  }
}

}  // namespace trainlaunch
