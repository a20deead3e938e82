// Faults at chosen points of a save. The linker hands every call that lib/ckpt makes to a file
// system (module.am lists them) to this folder, which counts those that concern a watched
// directory, writes them down, and lets one of them fail, kill or take the power away.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../unit/channels.h"

namespace trainlaunch::crash {

enum class Effect : uint8_t {
  none,
  kill,           // SIGKILL instead of the call
  fail,           // the call is not made, and says that it has failed
  done_and_fail,  // the call is made, and says that it has failed: a file server's answer was lost
  shorten,        // a write writes half of it
  power,          // the file system stops as in a loss of power; then SIGKILL
  fill,           // no byte is free on the disk from now on
  fill_files,     // no file more can be made on it from now on
  pause,          // the call waits until the other ranks have had ample time
};

// What happens to the at-th call (from 1) of a rank.
struct Fault {
  Effect effect = Effect::none;
  int rank = 0;
  uint32_t at = 0;
  int error = 0;  // errno
};

// A call as it was made, a gather, or something noted in between, such as "durable". Paths begin
// below the watched directory.
struct Call {
  uint32_t order = 0;  // among those of all ranks
  int rank = 0;
  bool failed = false;
  std::array<char, 16> name{};
  std::array<char, 160> path{}, to{};
};

// What the ranks of a job tell, in memory that outlives them.
struct Sheet {
  static constexpr int ranks = 4, calls = 1200, notes = 64, steps = 16;
  enum Saved : uint8_t { unknown, durable, failed };
  struct Rank {
    std::atomic<uint32_t> calls{0};
    std::atomic<uint32_t> polls{0};    // of the thread that reports
    std::atomic<bool> reached{false};  // the point of the fault
    std::array<std::atomic<Saved>, steps> saved{};
    std::atomic<uint64_t> resumed{0};
    std::atomic<bool> heard{false};  // told, when it had saved all
    std::atomic<bool> quiet{true};   // everything known has been reported
    std::atomic<uint32_t> passed_over{0}, warnings{0};
    std::array<char, 400> trouble{},
        warning{};  // what is wrong, or could not be done; the last one
    std::array<Call, Sheet::calls> list{};
    std::atomic<uint32_t> notes{0};
    std::array<Call, Sheet::notes> noted{};
  };
  std::atomic<uint32_t> order{0};
  std::atomic<bool> told{false};  // by the rank whose call paused, afterwards
  std::array<Rank, ranks> rank{};

  uint64_t last_durable() const;  // said by any rank
  std::string troubles() const;
  std::vector<Call> all_calls() const;  // in their order
};

// In the process of a rank: from now on what concerns `root` is counted.
void arm(Sheet& sheet, int rank, const std::string& root, const Fault& fault);
void disarm();
// A point that is no call of the system.
void pass(const char* name, const std::string& what);
// No point, as it comes from another thread than most calls: where it stands among them may change.
void note(const char* name, const std::string& what);

// A control channel whose gathers are points.
class CountedControl final : public testing::PassedOn<> {
 public:
  using PassedOn::PassedOn;
  Result<std::vector<std::string>> gather(std::string_view name, std::string_view mine,
                                          Deadline deadline) override {
    pass("gather", std::string(name));
    return PassedOn::gather(name, mine, deadline);
  }
};

}  // namespace trainlaunch::crash
