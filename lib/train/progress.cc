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
  char line[200];
  std::snprintf(line, sizeof line,
                "step %llu/%llu  loss %s  lr %.2e  norm %s  %s tokens/s  mfu %.1f%%  left %s",
                static_cast<unsigned long long>(r.step),
                static_cast<unsigned long long>(last_step_), fixed(r.loss, 4).c_str(),
                r.learning_rate, fixed(r.grad_norm, 3).c_str(),
                grouped(static_cast<uint64_t>(r.tokens_per_second)).c_str(), 100 * r.mfu,
                duration(seconds * static_cast<double>(last_step_ - r.step)).c_str());
  return line;
}

}  // namespace trainlaunch
