// Ranks as threads of a test, with a control channel made of a mutex.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "channels.h"

namespace trainlaunch {

class Team {
 public:
  explicit Team(int size) : Team(std::vector<int>{size}) {}
  // So many ranks on each node.
  explicit Team(const std::vector<int>& per_node)
      : per_node_(per_node), size_(std::accumulate(per_node.begin(), per_node.end(), 0)) {
    for (size_t n = 1; n < per_node.size(); ++n) nodes_.push_back("there" + std::to_string(n));
  }

  // Runs `body` once per rank, rank 0 in the calling thread, and returns when all have returned.
  void run(const std::function<void(WorkerControl&)>& body) {
    auto one = [&](int rank) {
      Member member(*this, rank);
      body(member);
      leave();
    };
    std::vector<std::thread> others;
    for (int r = 1; r < size_; ++r) others.emplace_back(one, r);
    one(0);
    for (std::thread& t : others) t.join();
  }

 private:
  class Member final : public WorkerControl {
   public:
    Member(Team& team, int rank)
        : team_(team), world_(testing::world_of(team.per_node_, team.nodes_, rank)) {}
    const World& world() const override { return world_; }
    Status put(std::string_view key, std::string_view value) override {
      std::lock_guard lock(team_.mutex_);
      team_.values_[std::string(key)] = value;
      team_.changed_.notify_all();
      return {};
    }
    Result<std::string> get(std::string_view key, Deadline) override {
      std::unique_lock lock(team_.mutex_);
      const std::string k(key);
      team_.changed_.wait(lock, [&] { return team_.values_.contains(k); });
      return team_.values_[k];
    }
    Result<std::vector<std::string>> gather(std::string_view name, std::string_view mine,
                                            Deadline deadline) override {
      return team_.gather(world_.rank, std::string(name), std::string(mine), deadline);
    }
    const std::vector<int>& local_sockets() const override { return sockets_; }
    void progress(uint64_t, std::string_view) noexcept override {}
    bool failed(std::string_view) noexcept override { return false; }

   private:
    Team& team_;
    const World world_;
    std::vector<int> sockets_;
  };

  // The n-th gather of a name on one rank meets the n-th of that name on the others.
  Result<std::vector<std::string>> gather(int rank, const std::string& name, std::string mine,
                                          Deadline deadline) {
    std::unique_lock lock(mutex_);
    Meeting& meeting = meetings_[{name, turns_[{rank, name}]++}];
    meeting.slots.resize(static_cast<size_t>(size_));
    meeting.slots[static_cast<size_t>(rank)] = std::move(mine);
    ++meeting.arrived;
    changed_.notify_all();
    const auto at = std::min(deadline.at, Clock::now() + patience);
    const bool answered =
        changed_.wait_until(lock, at, [&] { return meeting.arrived == size_ || gone_ > 0; });
    if (meeting.arrived == size_) return meeting.slots;
    return fail((answered ? "a rank has gone" : "a rank is missing") +
                std::string(" while others gather ") + name);
  }
  void leave() {
    std::lock_guard lock(mutex_);
    ++gone_;
    changed_.notify_all();
  }

  static constexpr std::chrono::seconds patience{60};
  struct Meeting {
    std::vector<std::string> slots;
    int arrived = 0;
  };

  const std::vector<int> per_node_;
  const int size_;
  std::vector<std::string> nodes_{"here"};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::pair<std::string, int>, Meeting> meetings_;
  std::map<std::pair<int, std::string>, int> turns_;
  int gone_ = 0;
};

}  // namespace trainlaunch
