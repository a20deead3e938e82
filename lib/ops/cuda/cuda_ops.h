// The operations on a GPU. Products are cuBLASLt's; everything else is kernels.h.
#pragma once

#include <functional>
#include <memory>

#include "ops/cuda/products.h"
#include "ops/ops.h"

namespace trainlaunch {

// On the index-th GPU that this process sees; dtype is f32 or bf16. An error where cuBLASLt is not
// to be had.
Result<std::unique_ptr<Ops>> make_cuda_ops(int index, DType dtype);

// The same from its parts, for tests: `report` hands the error of a product to its Stream.
using Report = std::function<void(Stream&, Error)>;
std::unique_ptr<Ops> make_cuda_ops(DType dtype, std::unique_ptr<gpu::Products> products,
                                   Report report);

}  // namespace trainlaunch
