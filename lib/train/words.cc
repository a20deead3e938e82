#include "train/words.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace trainlaunch {

namespace {

// Numbers from here on are no longer read digit by digit.
constexpr double longest = 1e15;

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[128];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

}  // namespace

std::string grouped(uint64_t n) {
  std::string digits = std::to_string(n);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

std::string grouped_whole(double x) {
  return x >= 0 && x < longest ? grouped(static_cast<uint64_t>(x)) : fixed(x, 0);
}

std::string mebibytes(uint64_t bytes) {
  return format("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

std::string binary_size(uint64_t bytes) {
  constexpr uint64_t gibibyte = uint64_t{1} << 30;
  if (bytes < 10 * gibibyte) return mebibytes(bytes);
  return format("%.1f GiB", static_cast<double>(bytes) / static_cast<double>(gibibyte));
}

std::string duration(double seconds) {
  if (!std::isfinite(seconds) || seconds > 1e9) return "unknown";
  const auto s = static_cast<long long>(std::llround(std::max(0.0, seconds)));
  if (s < 60) return format("%llds", s);
  if (s < 3600) return format("%lldm %02llds", s / 60, s % 60);
  return format("%lldh %02lldm", s / 3600, s % 3600 / 60);
}

std::string fixed(double x, int digits) {
  if (std::isnan(x)) return "nan";  // whatever its sign
  return format(std::isinf(x) || std::abs(x) < longest ? "%.*f" : "%.*e", digits, x);
}

std::string plural(uint64_t n, const char* what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

}  // namespace trainlaunch
