// Communicators of ranks that `run_ranks` starts, each in a process of its own.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "comm/comm.h"
#include "expect.h"
#include "ranks.h"
#include "texts.h"

namespace trainlaunch::testing {

inline Deadline soon() { return Deadline::in(Seconds(60)); }

inline CommOptions options() {
  CommOptions o;
  o.timeout = Seconds(30);
  o.interface = "lo";
  return o;
}

// What each rank's `body`, a function of a Comm& and a const World&, says of it: nothing, or what
// is wrong.
template <class Body>
std::vector<std::string> run_comms(const Layout& layout, const Body& body,
                                   SumOrder order = SumOrder::nodes) {
  return run_ranks(layout, [&](Control& control, const auto& sockets) -> std::string {
    CommOptions o = options();
    o.order = order;
    auto made = make_comm(control, sockets, o);
    EXPECT_OK(made);
    return body(**made, control.world());
  });
}

inline void check_all_well(const std::vector<std::string>& results) {
  for (size_t r = 0; r < results.size(); ++r) {
    CAPTURE(r);
    CHECK(results[r] == "");
  }
}

}  // namespace trainlaunch::testing
