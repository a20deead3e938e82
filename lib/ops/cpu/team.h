// Loops divided among threads.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace trainlaunch {

class Team {
 public:
  explicit Team(int size) : size_(std::max(size, 1)) {}
  int size() const { return size_; }

  // f(begin, end) for one run of [0, n) per thread, cut at multiples of `unit`. `work` is a rough
  // count of elements touched: where it is small, waking the others would cost more than they do.
  // All threads or one: OpenMP would end and start threads for teams of changing size.
  template <class F>
  void split(int64_t n, int64_t unit, int64_t work, const F& f) const {
    const int64_t units = (n + unit - 1) / unit;
    if (size_ == 1 || units < 2 || work < enough_work) {
      if (n > 0) f(int64_t{0}, n);
      return;
    }
#pragma omp parallel for schedule(static, 1) num_threads(size_)
    for (int part = 0; part < size_; ++part) {
      const int64_t begin = units * part / size_ * unit;
      const int64_t end = std::min(n, units * (part + 1) / size_ * unit);
      if (begin < end) f(begin, end);
    }
  }

  // f(i, thread) for i in [0, n), each by whichever thread is free; thread < size().
  template <class F>
  void each(int64_t n, const F& f) const {
#pragma omp parallel for schedule(dynamic, 1) num_threads(size_) if (size_ > 1 && n > 1)
    for (int64_t i = 0; i < n; ++i) f(i, omp_get_thread_num());
  }

 private:
  static constexpr int64_t enough_work = 16384;
  int size_;
};

}  // namespace trainlaunch
