#include "tests/gpu/simt_host.h"
// The emulator first.
#include "lib/ops/cuda/elementwise.cu"
