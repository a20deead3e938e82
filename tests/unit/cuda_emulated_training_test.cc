// Training on a GPU, on the host: kernels emulated, on streams that run later, each in a thread of
// its own. What the engine forgets to wait for comes out wrong.

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "ops/cuda/cuda_ops.h"
#include "tests/gpu/fake_device.h"
#include "tests/gpu/host_products.h"
#include "tests/gpu/training_cases.h"

// As tests/gpu/simt_host.h declares it.
namespace trainlaunch::gpu {
void in_order(void* stream, std::function<void()> work);
void in_order(void* stream, std::function<void()> work) {
  static_cast<testing::FakeStream*>(stream)->push(std::move(work));
}
}  // namespace trainlaunch::gpu

using namespace trainlaunch;
using namespace trainlaunch::testing;

namespace {

// The products of a stream's order.
class StreamedProducts final : public gpu::Products {
 public:
  size_t workspace_bytes() const override { return products_->workspace_bytes(); }
  Result<gpu::Ending> run(void* stream, const gpu::Product& p, void* workspace) override {
    static_cast<FakeStream*>(stream)->push(
        [products = products_, p, workspace] { (void)products->run(nullptr, p, workspace); });
    return gpu::Ending{true, true, true, true};
  }
  Status started() override { return {}; }

 private:
  std::shared_ptr<HostProducts> products_ = std::make_shared<HostProducts>(/*ends=*/true);
};

Result<TrainingDevice> make_emulated(DType type) {
  TrainingDevice on;
  on.device = std::make_unique<FakeDevice>();
  on.ops = make_cuda_ops(type, std::make_unique<StreamedProducts>(),
                         [](Stream&, const Error& e) { FAIL_CHECK(e.what); });
  return on;
}

}  // namespace

TEST_CASE("a model is trained on an emulated GPU, in every form, as on processors") {
  check_training(make_emulated);
}
