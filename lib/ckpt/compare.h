// What differs between two checkpoints, element by element.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ckpt/directory.h"
#include "ckpt/verify.h"

namespace trainlaunch {

// How two runs of numbers differ. Equal means equal bits: 0 and -0 differ, by 0.
struct Difference {
  uint64_t elements = 0;  // that there are
  uint64_t differing = 0;
  double largest = 0;   // |a - b|
  double relative = 0;  // |a - b| / max(|a|, |b|); both are infinite where one side is not finite
  void add(const Difference& other);
};
Difference difference(const float* a, const float* b, int64_t n);

struct Comparison {
  struct Entry {
    std::string tensor, slot;
    Difference difference;
  };
  std::vector<Entry> differing;             // by name
  std::map<std::string, Difference> slots;  // all of a slot
  std::map<std::string, uint64_t> tensors;  // of each slot: how many of its tensors differ
  std::vector<std::string> unmatched;  // what only one has, or has in another size: a line each
  std::vector<std::string> remarks;    // other steps, positions or options: no difference
  bool equal() const { return differing.empty() && unmatched.empty(); }
};

// Compares tensors of the same name; `slot`, when not empty, only in this one, which at least one
// of the two must have (usage). Every byte read is verified, and a few MiB are in memory at a time.
Result<Comparison> compare(const Directory& a, const Directory& b, const std::string& slot,
                           const Progress& progress);

}  // namespace trainlaunch
