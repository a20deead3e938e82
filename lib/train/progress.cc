#include "train/progress.h"

#include <cstdio>

#include "train/words.h"

namespace trainlaunch {

std::string Progress::line(StepRecord& r) {
  const double seconds = busy_.count() / steps_;
  r.tokens_per_second = work_.tokens / seconds;
  r.mfu = work_.peak_flops > 0 ? r.tokens_per_second * work_.flops_per_token / work_.peak_flops : 0;
  busy_ = {};
  steps_ = 0;
  char rate[32];
  std::snprintf(rate, sizeof rate, "%.2e", r.learning_rate);
  return "step " + std::to_string(r.step) + "/" + std::to_string(last_step_) + "  loss " +
         fixed(r.loss, 4) + "  lr " + rate + "  norm " + fixed(r.grad_norm, 3) + "  " +
         grouped_whole(r.tokens_per_second) + " tokens/s  mfu " + fixed(100 * r.mfu, 1) +
         "%  left " + duration(seconds * static_cast<double>(last_step_ - r.step));
}

}  // namespace trainlaunch
