// GELU in its tanh form; see Activation in ops/ops.h.
#pragma once

#include "ops/cuda/simt.h"

namespace trainlaunch::gpu {

constexpr float gelu_scale = 0.7978845608028654f;  // sqrt(2 / pi)
constexpr float gelu_cubic = 0.044715f;

TL_DEVICE float gelu_value(float x) {
  return 0.5f * x * (1.0f + tanhf(gelu_scale * (x + gelu_cubic * x * x * x)));
}
TL_DEVICE float gelu_derivative(float x) {
  const float t = tanhf(gelu_scale * (x + gelu_cubic * x * x * x));
  const float inner = gelu_scale * (1.0f + 3.0f * gelu_cubic * x * x);
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
}

}  // namespace trainlaunch::gpu
