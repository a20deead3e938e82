// Watches the loss and the gradient's norm of each step, for numbers that are not finite and for
// spikes: values far above those of the steps before. What it is told is the same on every rank,
// and so is what it says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/ckpt.h"
#include "train/config.h"

namespace trainlaunch {

// The last values of a series, and how high the next may be.
class Window {
 public:
  Window(int64_t size, double deviations) : size_(static_cast<size_t>(size)), z_(deviations) {}

  // mean + z deviations of the values; infinity until there are `size` of them, and for z = 0. A
  // deviation counts as no less than a hundredth of the mean: a loss that hardly moves any more is
  // no reason to take offence at every step.
  double limit() const;
  // A value above the limit goes in as the limit: it takes several to change what is usual, and one
  // cannot hide those after it.
  void add(double x);
  double mean() const;

  const std::vector<double>& values() const { return values_; }  // oldest first
  void restore(const std::vector<double>& values);

 private:
  size_t size_;
  double z_;
  std::vector<double> values_;
};

enum class Action : uint8_t { none, say, skip, roll_back, stop };
struct Verdict {
  Action action = Action::none;
  bool finite = true;
  std::string why;  // "loss 8.21 is a spike: ..."; empty: nothing is wrong
};

class StepGuard {
 public:
  explicit StepGuard(const GuardConfig& config);

  // The largest norm of the gradient with which a step of this loss may change the weights.
  double norm_limit(double loss) const;
  // Of the step with this loss and norm, once. `can_go_back`: there is a checkpoint.
  Verdict judge(double loss, double norm, bool can_go_back);

  // Steps in a row that changed no weight.
  uint64_t skipped() const { return state_.skipped; }
  bool hopeless() const { return state_.skipped >= skipped_limit; }

  bool may_roll_back() const { return state_.rollbacks < static_cast<uint64_t>(most_rollbacks_); }
  uint64_t rollbacks() const { return state_.rollbacks; }
  // The checkpoint to go back to from `step` must be older than this one; 0: the newest will do.
  // The newest has been tried if the run did not come past the step that it last went back from.
  uint64_t older_than(uint64_t step) const;
  // The run has gone back from step `from` to `to`, whose checkpoint had this state.
  void rolled_back(uint64_t from, uint64_t to, const Guard& then);

  Guard state() const;
  void restore(const Guard& state);

 private:
  static constexpr uint64_t skipped_limit = 10;

  const OnSpike on_spike_;
  const OnNan on_nan_;
  const int64_t most_rollbacks_;
  Window losses_, norms_;
  Guard state_;  // without the windows
};

}  // namespace trainlaunch
