// Plans for tests, and questions to them.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bind/bind.h"
#include "machines.h"

namespace trainlaunch {

inline Plan make(const Machine& m, const Allocation& a = {}, const Policy& p = {}) {
  auto made = plan(m, a, p);
  REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().what));
  return std::move(*made);
}

inline std::vector<int> range(int from, int to) {
  std::vector<int> out;
  for (int i = from; i <= to; ++i) out.push_back(i);
  return out;
}

inline std::string cpus(const Plan& p, size_t rank) { return to_list(p.ranks[rank].cpus); }

inline std::vector<int> nics(const Plan& p) {
  std::vector<int> out;
  for (const RankPlan& r : p.ranks) {
    REQUIRE(r.nics.size() == 1);
    out.push_back(r.nics[0]);
  }
  return out;
}

inline std::vector<int> gpus(const Plan& p) {
  std::vector<int> out;
  for (const RankPlan& r : p.ranks) {
    REQUIRE(r.gpus.size() == 1);
    out.push_back(r.gpus[0]);
  }
  return out;
}

inline bool warns(const Plan& p, const std::string& code) {
  return std::any_of(p.warnings.begin(), p.warnings.end(),
                     [&](const Warning& w) { return w.code == code; });
}

inline bool disjoint(const Plan& p) {
  CpuSet seen;
  for (const RankPlan& r : p.ranks) {
    if ((seen & r.cpus).any()) return false;
    seen |= r.cpus;
  }
  return true;
}

}  // namespace trainlaunch
