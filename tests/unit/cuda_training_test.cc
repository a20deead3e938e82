#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "base/cuda/cuda_device.h"
#include "ops/cuda/cuda_ops.h"
#include "tests/gpu/training_cases.h"

using namespace trainlaunch;
using namespace trainlaunch::testing;

namespace {

Result<TrainingDevice> make_gpu(DType type) {
  TrainingDevice on;
  auto device = make_cuda_device(0);
  if (!device) return forward(device);
  on.device = std::move(*device);
  auto ops = make_cuda_ops(0, type);
  if (!ops) return forward(ops);
  on.ops = std::move(*ops);
  return on;
}

}  // namespace

TEST_CASE("a model is trained on a GPU, in every form, as on processors") {
  if (auto gpu = make_cuda_device(0); !gpu) {
    MESSAGE("skipped: " << gpu.error().what);
    return;
  }
  check_training(make_gpu);
}
