// The centre of the control channel: a thread in rank 0's supervisor to which every supervisor,
// rank 0's own included, holds one connection.
//
// It answers put, get and gather; it hears heartbeats and notices who falls silent; it decides what
// failed first and tells all ranks at once; and when every rank has left it announces the exit code
// that all of them share.
//
// What failed first: a lost supervisor, a death by signal or a cancellation (codes above 128)
// counts at once; a worker that exits with an ordinary code may be the echo of such a death
// elsewhere, and is held back for `settle`. After the first failure every call is answered with it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/time.h"
#include "boot/auth.h"
#include "boot/boot.h"

namespace trainlaunch {

// How supervisors watch each other.
struct Pace {
  Seconds ping{2};      // between two signs of life
  Seconds silence{10};  // without one the other side is lost
  Seconds settle{0.25};
};

class Hub {
 public:
  enum class Listen { nowhere, loopback, everywhere };
  struct Options {
    World world;  // rank 0's
    Secret secret{};
    Listen listen = Listen::nowhere;
    Pace pace;
  };

  static Result<std::unique_ptr<Hub>> start(const Options& options);
  virtual ~Hub() = default;  // stops at once

  virtual int port() const = 0;  // 0 when it listens nowhere
  // One end of a socketpair, for the rank that lives in this process.
  virtual void adopt(Fd socket) = 0;
  // Waits until every rank has been told to finish and has hung up.
  virtual void drain(Deadline deadline) = 0;
};

// "3 (n2)", "3 (n2), 5 (n3)": for messages.
std::string name_ranks(const World& world, const std::vector<int>& ranks);

}  // namespace trainlaunch
