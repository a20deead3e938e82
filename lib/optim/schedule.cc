#include <cmath>
#include <numbers>

#include "optim/optim.h"

namespace trainlaunch {

double Schedule::at(uint64_t step) const {
  if (step < warmup) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (step >= steps) return min_lr;
  const double progress = static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
  return min_lr + 0.5 * (lr - min_lr) * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace trainlaunch
