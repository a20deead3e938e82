// Errors are values. A function that can fail returns Result<T> (or Status when there is nothing to
// return); the command line turns the Error into one line on stderr and an exit code.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace trainlaunch {

// The exit codes of train-launch(1); sbatch templates act on them.
namespace exit_code {
inline constexpr int done = 0;
inline constexpr int failed = 1;
inline constexpr int usage = 2;      // wrong usage or configuration
inline constexpr int requeue = 75;   // stopped early with a durable checkpoint: run me again
inline constexpr int hopeless = 93;  // running again will not help
inline constexpr int cancelled = 143;
}  // namespace exit_code

struct Error {
  std::string what;              // what, where, and what to do: one line, no trailing newline
  int exit = exit_code::failed;  // what the process exits with if nobody handles it
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

// `return fail("...")` from any function that returns a Result.
inline tl::unexpected<Error> fail(std::string what, int exit = exit_code::failed) {
  return tl::unexpected<Error>(Error{std::move(what), exit});
}

// Hands an error on: `if (!r) return forward(r);`
template <class T>
tl::unexpected<Error> forward(Result<T>& r) {
  return tl::unexpected<Error>(std::move(r.error()));
}
template <class T>
tl::unexpected<Error> forward(Result<T>&& r) {
  return tl::unexpected<Error>(std::move(r.error()));
}

// "what: strerror(errno)"; call it at once, before errno changes.
tl::unexpected<Error> fail_errno(const std::string& what, int exit = exit_code::failed);

}  // namespace trainlaunch
