// What make_cpu_ops() does after it has chosen; tests choose every set of kernels in turn, and
// oneDNN.
#pragma once

#include <memory>

#include "ops/cpu/kernels.h"
#include "ops/cpu/products.h"
#include "ops/ops.h"

namespace trainlaunch {

std::unique_ptr<Ops> make_cpu_ops(int threads, const Kernels& kernels, DType dtype = DType::f32,
                                  ProductsBy by = ProductsBy::kernels);

}  // namespace trainlaunch
