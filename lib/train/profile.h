// Where the time of a run's steps goes: --profile.
//
// Each operation is waited for as soon as it is enqueued, so on a GPU nothing overlaps that would
// without a profile; on processors it changes nothing.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/base.h"
#include "comm/comm.h"
#include "ops/ops.h"
#include "train/peak.h"

namespace trainlaunch {

class Profile {
 public:
  // `trace` has a track "comm", of what the communicator does in the background, and gets one
  // "operations".
  explicit Profile(Trace& trace) : trace_(trace) {}

  // Only what happens between the two counts.
  void begin_step();
  void end_step();

  void operation(const std::string& name, double flops, Clock::time_point begin,
                 Clock::time_point end);
  // This rank stood still: for a collective in the background, or for the other ranks.
  void waited(Seconds time);
  void met(Seconds time);

  double flops(const std::string& operation) const;  // of all its calls
  std::vector<std::string> table(const Peak& ceiling) const;

 private:
  struct Entry {
    uint64_t calls = 0;
    Seconds time{0};
    double flops = 0;
  };

  Trace& trace_;
  std::map<std::string, Entry> operations_;
  bool in_step_ = false;
  uint64_t steps_ = 0;
  Clock::time_point begin_;
  Seconds background_at_begin_{0};
  Seconds all_{0}, background_{0}, waited_{0}, met_{0};
};

// The same operations and communicator, with their times told to `profile`, which outlives them.
std::unique_ptr<Ops> profiled(std::unique_ptr<Ops> ops, Profile& profile);
std::unique_ptr<Comm> profiled(std::unique_ptr<Comm> comm, Profile& profile);

}  // namespace trainlaunch
