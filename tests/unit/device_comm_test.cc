#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "comm/device_comm.h"

#include "comm/sum.h"
#include "tests/gpu/device_comm_cases.h"

using namespace trainlaunch;
using namespace trainlaunch::testing;

namespace {

DeviceParts parts_on(Device& device, std::string identity) {
  return {device, fake_math(), std::move(identity), {}};
}

// All ranks on one device, on one node without shared memory: threads have no sockets.
Result<std::unique_ptr<Comm>> make(WorkerControl& control, const CommOptions& options,
                                   Device& device) {
  CommOptions here = options;
  here.interface = "lo";
  return make_device_comm(control, control.local_sockets(), here, parts_on(device, "the only one"));
}

}  // namespace

TEST_CASE("staged: sums and gathers") {
  for (const int ranks : {2, 3}) {
    CAPTURE(ranks);
    const auto want = [&](int64_t i) {
      float sum = number(0, i);
      for (int r = 1; r < ranks; ++r) sum += number(r, i);
      return sum;
    };
    check_sums_and_gathers(make, ranks, SumOrder::nodes, DType::f32, want, 0);
  }
  const auto want = [](int64_t i) { return tree_sum(0, 4, i); };
  check_sums_and_gathers(make, 4, SumOrder::tree, DType::f32, want, 0);
}

TEST_CASE("staged: calls for the host") { check_host_calls(make, 2); }
TEST_CASE("staged: a rank that does not come") { check_missing_rank(make); }
TEST_CASE("staged: a rank that gives up") { check_abort(make); }
TEST_CASE("staged: what does not fit is refused") { check_refusals(make); }

TEST_CASE("a world of one has the device's memory") {
  FakeDevice device;
  const auto control = make_single_control();
  auto comm = make_device_comm(*control, {}, {}, parts_on(device, "x"));
  REQUIRE(comm);
  CHECK((*comm)->name() == std::string("single"));
  auto v = (*comm)->alloc("x", DType::f32, 10);
  REQUIRE(v);
  const Ticket t = (*comm)->reduce_scatter(*v, {{0, 10}}, DType::f32, Event());
  CHECK((*comm)->wait(t, soon()));
}

TEST_CASE("NCCL is chosen where each rank has a device of its own and the library") {
  for (const bool apart : {true, false}) {
    for (const bool usable : {true, false}) {
      CAPTURE(apart);
      CAPTURE(usable);
      check_ranks(2, [&](WorkerControl& control) -> std::string {
        FakeDevice device;
        const int rank = control.world().rank;
        DeviceParts parts = parts_on(device, apart ? std::to_string(rank) : "the only one");
        bool asked = false;
        parts.nccl = [&](Control&, const CommOptions&,
                         DeviceParts) -> Result<std::unique_ptr<Comm>> {
          asked = true;
          return fail("chosen");
        };
        if (!usable && rank == 1) parts.nccl = {};
        CommOptions options;
        options.interface = "lo";
        auto comm = make_device_comm(control, {}, options, std::move(parts));
        EXPECT(asked == (apart && usable));
        EXPECT(asked == !comm);
        if (comm) EXPECT((*comm)->name() == std::string("staged"));
        if (comm) EXPECT_OK((*comm)->barrier(soon()));
        return "";
      });
    }
  }
}
