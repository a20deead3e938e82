#include "train/guard.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "train/words.h"

namespace trainlaunch {

namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr double least_deviation = 0.01;  // of the mean

std::string spike(const char* what, double x, const Window& w) {
  return std::string(what) + " " + fixed(x, 4) + " is a spike: the last " +
         plural(w.values().size(), "step") + " had " + fixed(w.mean(), 4) + " on average, and " +
         fixed(w.limit(), 4) + " is the limit";
}

}  // namespace

double Window::mean() const {
  return std::accumulate(values_.begin(), values_.end(), 0.0) / static_cast<double>(values_.size());
}

double Window::limit() const {
  if (z_ == 0 || values_.size() < size_) return infinite;
  const double average = mean();
  double squares = 0;
  for (const double x : values_) squares += (x - average) * (x - average);
  const double deviation = std::sqrt(squares / static_cast<double>(values_.size()));
  return average + z_ * std::max(deviation, least_deviation * std::abs(average));
}

void Window::add(double x) {
  if (z_ == 0) return;
  const double kept = std::min(x, limit());
  if (values_.size() == size_) values_.erase(values_.begin());
  values_.push_back(kept);
}

void Window::restore(const std::vector<double>& values) {
  const size_t n = z_ == 0 ? 0 : std::min(values.size(), size_);
  values_.assign(values.end() - static_cast<std::ptrdiff_t>(n), values.end());
}

StepGuard::StepGuard(const GuardConfig& c)
    : on_spike_(c.spike),
      on_nan_(c.nan),
      most_rollbacks_(c.rollbacks),
      losses_(c.window, c.spike == OnSpike::ignore ? 0 : c.loss_z),
      norms_(c.window, c.spike == OnSpike::ignore ? 0 : c.norm_z) {}

double StepGuard::norm_limit(double loss) const {
  constexpr double none = -1;  // no norm is so small
  if (!std::isfinite(loss)) return none;
  if (on_spike_ != OnSpike::skip && on_spike_ != OnSpike::roll_back) return infinite;
  return loss > losses_.limit() ? none : norms_.limit();
}

Verdict StepGuard::judge(double loss, double norm, bool can_go_back) {
  Verdict v;
  if (!std::isfinite(loss) || !std::isfinite(norm)) {
    v.finite = false;
    v.why = "the loss or its gradient is not finite";
    v.action = on_nan_ == OnNan::stop                       ? Action::stop
               : on_nan_ == OnNan::roll_back && can_go_back ? Action::roll_back
                                                            : Action::skip;
  } else {
    if (loss > losses_.limit())
      v.why = spike("loss", loss, losses_);
    else if (norm > norms_.limit())
      v.why = spike("norm", norm, norms_);
    if (!v.why.empty())
      v.action = on_spike_ == OnSpike::roll_back && can_go_back ? Action::roll_back
                 : on_spike_ == OnSpike::say                    ? Action::say
                                                                : Action::skip;
    losses_.add(loss);
    norms_.add(norm);
  }
  const bool unchanged = v.action != Action::none && v.action != Action::say;
  state_.skipped = unchanged ? state_.skipped + 1 : 0;
  return v;
}

uint64_t StepGuard::older_than(uint64_t step) const {
  return step <= state_.rolled_from ? state_.rolled_to : 0;
}

void StepGuard::rolled_back(uint64_t from, uint64_t to, const Guard& then) {
  const uint64_t count = state_.rollbacks + 1, furthest = std::max(from, state_.rolled_from);
  restore(then);
  state_.rollbacks = count;
  state_.rolled_from = furthest;
  state_.rolled_to = to;
}

Guard StepGuard::state() const {
  Guard g = state_;
  g.losses = losses_.values();
  g.norms = norms_.values();
  return g;
}

void StepGuard::restore(const Guard& g) {
  state_ = g;
  state_.losses.clear();
  state_.norms.clear();
  losses_.restore(g.losses);
  norms_.restore(g.norms);
}

}  // namespace trainlaunch
