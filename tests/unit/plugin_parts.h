// What the tests of the plugin's parts share.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "../../spank/answer.h"

namespace trainlaunch::plugin {

constexpr uid_t nobody = 65534;

// An answer of the planner for so many ranks, or why it is none.
struct Read {
  explicit Read(std::string t, unsigned ranks = 2) : text(std::move(t)) {
    ok = answer.read(text.data(), text.size(), ranks, why);
  }
  std::string reason() const { return std::string(why.view()); }
  std::string text;
  Answer answer;
  Reason why;
  bool ok;
};

template <int N>
std::vector<int> members(const Bits<N>& bits) {
  std::vector<int> m;
  for (int i = 0; i < N; ++i)
    if (bits.test(i)) m.push_back(i);
  return m;
}

}  // namespace trainlaunch::plugin
