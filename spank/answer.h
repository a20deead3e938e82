// The planner's answer (wire.h), which is untrusted: the process that wrote it ran as the user.
// An Answer is checked whole before any of it is used: known variables only, numbers in range,
// lists and lines of bounded length, nothing but printable characters in what is applied. What is
// only printed has its control characters replaced.
#pragma once

#include <string_view>

#include "text.h"
#include "wire.h"

namespace trainlaunch::plugin {

// Bits numbered from 0, laid out as the kernel's masks are.
template <int N>
struct Bits {
  static constexpr int per_word = 8 * sizeof(unsigned long);
  static_assert(N % per_word == 0);
  unsigned long word[N / per_word] = {};

  void set(int i) { word[i / per_word] |= 1ul << i % per_word; }
  bool test(int i) const { return word[i / per_word] >> i % per_word & 1; }
  bool none() const {
    for (const unsigned long w : word)
      if (w) return false;
    return true;
  }
};
using CpuBits = Bits<gpu_bind_wire::max_cpus>;
using MemBits = Bits<gpu_bind_wire::max_mems>;

// Linux list form, "0-3,8": ascending ranges of numbers below N, at least one.
template <int N>
bool parse_list(std::string_view list, Bits<N>& bits);

enum class Give { keep, set, unset };

struct Variable {
  Give give = Give::keep;
  std::string_view name;  // one that gpu_bind_wire knows
  std::string_view value;
};

enum class MemPolicy { leave, preferred, bind };

// What the answer says of one local rank; the views look into the answer.
struct RankPlan {
  bool has_cpus = false;
  CpuBits cpus;
  MemPolicy mem_policy = MemPolicy::leave;
  MemBits mems;
  Variable variables[gpu_bind_wire::max_env];
  size_t variable_count = 0;
};

class Answer {
 public:
  // Checks `size` bytes of `text`, the answer for `ranks` local ranks, replacing control characters
  // of printed lines in place; `text` must outlive the Answer. False: void, or the planner's own
  // refusal, with the reason.
  bool read(char* text, size_t size, unsigned ranks, Reason& why);

  // An answer for no rank at all is a plan too: to leave everything alone.
  bool empty() const { return ranks_.empty(); }
  std::string_view digest() const { return digest_; }
  // What is to be printed for the node, or by one rank: start with `rest` from node() or rank().
  std::string_view node() const { return node_; }
  std::string_view rank(unsigned i) const;
  static bool next_text(std::string_view& rest, std::string_view& text);
  RankPlan plan(unsigned i) const;

 private:
  std::string_view digest_;
  std::string_view node_;   // the lines before the first rank
  std::string_view ranks_;  // the lines of all ranks
};

}  // namespace trainlaunch::plugin
