// What make_cpu_ops() does after it has chosen; tests choose every set of kernels in turn.
#pragma once

#include <memory>

#include "ops/cpu/kernels.h"
#include "ops/ops.h"

namespace trainlaunch {

std::unique_ptr<Ops> make_cpu_ops(int threads, const Kernels& kernels, DType dtype = DType::f32,
                                  SameBits bits = SameBits::same_threads);

}  // namespace trainlaunch
