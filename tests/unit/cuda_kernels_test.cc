// The CUDA operations on the host: their kernels emulated, products by plain loops, in place of
// cuBLASLt. The cases are tests/gpu/ops_cases.cc, which run on a GPU too where there is one.

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "ops/cuda/cuda_ops.h"
#include "tests/gpu/host_products.h"
#include "tests/gpu/ops_machine.h"
#include "tests/gpu/simt_host.h"

void trainlaunch::gpu::in_order(void*, std::function<void()> work) { work(); }

namespace trainlaunch::testing {

void for_each_machine(const OpsLimits& limits, const std::function<void(Machine&)>& f) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool rising : {true, false}) {
      // What the library leaves to the caller is done by kernels.
      auto products = std::make_unique<HostProducts>(/*ends=*/rising);
      const auto report = [](Stream&, const Error& e) { FAIL(e.what); };
      Machine machine(std::string(name_of(dtype)) + (rising ? ", rising" : ", falling"),
                      make_host_device(), make_cuda_ops(dtype, std::move(products), report));
      INFO(machine.name());
      machine.set_limits(limits);
      simt::order = rising ? simt::Order::rising : simt::Order::falling;
      f(machine);
    }
  }
}

}  // namespace trainlaunch::testing
