#include "train/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace trainlaunch {

int32_t choose(std::span<const float> logits, const GenerateOptions& options, uint64_t index) {
  std::vector<int32_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  // Ties go to the smaller token, so that a choice never depends on the sorting algorithm.
  std::sort(tokens.begin(), tokens.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  if (options.temperature <= 0) return tokens.front();
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(tokens.size()))
    tokens.resize(static_cast<size_t>(options.top_k));

  std::vector<double> cumulative(tokens.size());
  double sum = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const double above = static_cast<double>(logits[tokens[i]]) - logits[tokens.front()];
    cumulative[i] = sum += std::exp(above / options.temperature);
  }
  if (options.top_p < 1) {
    const auto enough = std::lower_bound(cumulative.begin(), cumulative.end(), options.top_p * sum);
    tokens.resize(std::min<size_t>(enough - cumulative.begin(), tokens.size() - 1) + 1);
    cumulative.resize(tokens.size());
    sum = cumulative.back();
  }
  const double drawn = unit(philox(options.seed, RandomStream::sample, index, 0)[0]) * sum;
  const auto at = std::lower_bound(cumulative.begin(), cumulative.end(), drawn);
  return tokens[std::min<size_t>(at - cumulative.begin(), tokens.size() - 1)];
}

}  // namespace trainlaunch
