// The cases of tests/gpu/ops_cases.cc on the first GPU, with cuBLASLt.

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "ops/cuda/cuda_ops.h"

#include "base/cuda/cuda_device.h"
#include "tests/gpu/ops_machine.h"

using namespace trainlaunch;

namespace {
// Says it once in a case.
void skip(const std::string& why) {
  static const void* said = nullptr;
  const void* now = doctest::getContextOptions()->currentTest;
  if (said != now) MESSAGE("skipped: " << why);
  said = now;
}
}  // namespace

namespace trainlaunch::testing {

void for_each_machine(const OpsLimits& limits, const std::function<void(Machine&)>& f) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    auto device = make_cuda_device(0);
    if (!device) {
      skip(device.error().what);
      return;
    }
    auto ops = make_cuda_ops(0, dtype);
    INFO((ops ? std::string() : ops.error().what));
    REQUIRE(ops);
    Machine machine(name_of(dtype), std::move(*device), std::move(*ops));
    INFO(machine.name());
    machine.set_limits(limits);
    f(machine);
  }
}

}  // namespace trainlaunch::testing

TEST_CASE("what the library says, or why there are no operations, is one line") {
  auto ops = make_cuda_ops(0, DType::bf16);
  if (ops) return;
  CHECK_FALSE(ops.error().what.empty());
  CHECK(ops.error().what.find('\n') == std::string::npos);
  MESSAGE(ops.error().what);
}
