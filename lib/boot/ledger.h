// What the hub knows and decides, without sockets, threads or a clock of its own: messages of known
// ranks go in, answers for known ranks come out.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"
#include "boot/boot.h"
#include "boot/hub.h"
#include "boot/message.h"

namespace trainlaunch {

class Ledger {
 public:
  struct Outgoing {
    int rank;
    Message message;
  };

  Ledger(World world, Pace pace);

  void joined(int rank) { ranks_[rank].joined = true; }
  bool has(int rank) const { return ranks_[rank].joined; }
  void handle(int rank, Message m, Clock::time_point now);
  // The connection is gone, or silent, or speaks nonsense.
  void lost(int rank, const std::string& how, Clock::time_point now);
  // Deadlines that are over; call it at due() or later.
  void expire(Clock::time_point now);
  Clock::time_point due() const;

  std::vector<Outgoing> take_outgoing() { return std::exchange(out_, {}); }
  bool finished() const { return finished_; }

 private:
  struct Rank {
    bool joined = false, lost = false;
    std::optional<int> left;  // exit code
    int64_t step = 0;
    std::string phase;
    std::set<std::string> in;  // names of gathers it waits in
  };
  struct Wait {
    int rank;
    uint64_t id;
    Clock::time_point asked, until;
  };
  struct Gather {
    std::vector<std::optional<std::string>> values;
    int arrived = 0;
    std::vector<Wait> waits;
    std::string failed;
  };
  struct Failure {
    std::string what;
    int code = 0;
  };

  void put(int rank, Message m);
  void get(int rank, const Message& m, Clock::time_point now);
  void gather(int rank, Message m, Clock::time_point now);
  void end_gather(const std::string& name, uint64_t turn);
  void report(Failure what, bool at_once, Clock::time_point now);
  void announce(Clock::time_point now);
  void maybe_finish();
  void finish(int code);
  void refuse(int rank, uint64_t id, std::string what);
  void tell_all(const Message& m);
  std::string late(const Gather& g) const;

  World world_;
  Pace pace_;
  std::vector<Rank> ranks_;
  std::map<std::string, std::string> store_;
  size_t stored_ = 0;
  std::map<std::string, std::vector<Wait>> gets_;
  std::map<std::pair<std::string, uint64_t>, Gather> gathers_;
  std::map<std::string, std::vector<uint64_t>> turns_;  // calls of a name, by rank
  std::optional<Failure> suspect_, failure_;
  Clock::time_point settle_until_ = Clock::time_point::max();
  Clock::time_point finish_by_ = Clock::time_point::max();
  bool finished_ = false;
  std::vector<Outgoing> out_;
};

}  // namespace trainlaunch
