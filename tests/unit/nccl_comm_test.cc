#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "comm/nccl/nccl_comm.h"

#include "tests/gpu/device_comm_cases.h"
#include "tests/gpu/fake_nccl.h"

using namespace trainlaunch;
using namespace trainlaunch::testing;

namespace {

Result<std::unique_ptr<Comm>> make(WorkerControl& control, const CommOptions& options,
                                   Device& device) {
  return make_nccl_comm(fake_nccl::library(), control, options,
                        {device, fake_math(), std::to_string(control.world().rank), {}});
}

// Nothing that NCCL forbids was done, and everything was given back.
void check_tidy() {
  CHECK(fake_nccl::state.violations == 0);
  CHECK(fake_nccl::state.communicators == 0);
  CHECK(fake_nccl::state.allocations == 0);
}

float sum_over(int ranks, int64_t i, float (*f)(float)) {
  float sum = f(number(0, i));
  for (int r = 1; r < ranks; ++r) sum += f(number(r, i));
  return sum;
}

}  // namespace

TEST_CASE("sums by NCCL, and gathers") {
  for (const int ranks : {2, 3, 4}) {
    for (const bool own_memory : {true, false}) {
      CAPTURE(ranks);
      fake_nccl::state.no_memory = !own_memory;
      const auto want = [&](int64_t i) { return sum_over(ranks, i, [](float x) { return x; }); };
      check_sums_and_gathers(make, ranks, SumOrder::nodes, DType::f32, want, 1.0);
      check_tidy();
      CHECK(fake_nccl::state.registrations == 0);
    }
  }
  fake_nccl::state.no_memory = false;
}

TEST_CASE("sums in the order of a tree have the tree's bits") {
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    const auto want = [&](int64_t i) { return tree_sum(0, ranks, i); };
    check_sums_and_gathers(make, ranks, SumOrder::tree, DType::f32, want, 0);
    check_tidy();
  }
}

TEST_CASE("bf16 on the wire: each rank's numbers are rounded once, and added in f32 by rank") {
  for (const int ranks : {2, 3}) {
    CAPTURE(ranks);
    const auto want = [&](int64_t i) {
      return sum_over(ranks, i, [](float x) { return float_of(bf16_of(x)); });
    };
    check_sums_and_gathers(make, ranks, SumOrder::nodes, DType::bf16, want, 0);
    check_tidy();
  }
}

TEST_CASE("sums over more ranks than a kernel takes parts") {
  constexpr int ranks = 40;
  const auto want = [](int64_t i) {
    return sum_over(ranks, i, [](float x) { return float_of(bf16_of(x)); });
  };
  check_sums_and_gathers(make, ranks, SumOrder::nodes, DType::bf16, want, 0);
  check_tidy();
}

TEST_CASE("calls for the host") {
  check_host_calls(make, 2);
  check_host_calls(make, 3);
  check_tidy();
}

TEST_CASE("a rank that does not come") {
  check_missing_rank(make);
  check_tidy();
}

TEST_CASE("a rank that gives up") {
  check_abort(make);
  check_tidy();
}

TEST_CASE("what does not fit is refused") {
  check_refusals(make);
  check_tidy();
  check_ranks(3, [](WorkerControl& control) -> std::string {
    FakeDevice device;
    CommOptions options;
    options.order = SumOrder::tree;
    EXPECT(!make(control, options, device));
    return "";
  });
}

TEST_CASE("an old NCCL is refused") {
  CHECK(check_nccl_version(22809, 22809));
  CHECK(check_nccl_version(22800, 22809));
  CHECK(check_nccl_version(23001, 22809));
  const Status old = check_nccl_version(22105, 22809);
  REQUIRE_FALSE(old);
  CHECK(old.error().what ==
        "NCCL is 2.21.5, older than the 2.28.9 that this was built with: install that or a newer "
        "one");
}
