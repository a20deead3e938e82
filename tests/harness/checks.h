// What is asked of every step of the tests: whether hooks were quiet, and ranks left alone.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <string>

#include "steps.h"

template <>
struct doctest::StringMaker<harness::Strings> {
  static doctest::String convert(const harness::Strings& list) {
    std::string text;
    for (const std::string& s : list) text += '[' + s + "] ";
    return text.c_str();
  }
};

namespace harness {

inline bool root() {
  if (getuid() == 0) return true;
  MESSAGE("skipped: only root has rights to drop");
  return false;
}

inline bool printable(const std::string& text) {
  for (const char c : text)
    if (c != '\n' && (c < ' ' || c > '~')) return false;
  return true;
}

// No hook failed or left a trace in the program that called it.
inline void check_quiet(const Outcome& o) {
  INFO(o.err);
  CHECK(o.status == 0);
  CHECK(o.changed() == Strings());
  CHECK(o.answered_zero());
  CHECK_FALSE(o.drained());
}

inline std::string all_text(const Outcome& o) {
  std::string text = o.err;
  for (const std::string& line : o.logged()) text += line + '\n';
  return text;
}

// The ranks run, with the mask and the environment that Slurm gave them.
inline void check_unbound(const Outcome& o, int ranks = 2) {
  for (int i = 0; i < ranks; ++i) {
    const auto rank = o.rank(i);
    REQUIRE_MESSAGE(rank, o.err);
    CHECK(o.rank_status(i) == 0);
    CHECK(rank->memory == "0 0");
    for (const auto& [name, value] : rank->env) {
      CHECK_FALSE(name.starts_with("GPU_BIND_SET"));
      CHECK_FALSE(name.starts_with("GPU_BIND_PLAN"));
      CHECK_FALSE(name.starts_with("NCCL_"));
      CHECK_FALSE(name.starts_with("LD_"));
    }
    CHECK(rank->env.at("CUDA_VISIBLE_DEVICES") == "0,1");
  }
}

template <class F>
void with_each_build(F test) {
  const auto all = builds();
  REQUIRE_FALSE(all.empty());
  for (const Build& build : all) {
    CAPTURE(build.name);
    test(build);
  }
}

}  // namespace harness
