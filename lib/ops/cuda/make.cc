#include "base/cuda/cuda_device.h"
#include "ops/cuda/cuda_ops.h"

namespace trainlaunch {

Result<std::unique_ptr<Ops>> make_cuda_ops(int index, DType dtype) {
  auto products = gpu::make_cublas_products(index);
  if (!products) return forward(products);
  return make_cuda_ops(dtype, std::move(*products), keep_error);
}

}  // namespace trainlaunch
