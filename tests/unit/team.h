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

#include "boot/boot.h"

namespace trainlaunch {

class Team {
 public:
  explicit Team(int size) : Team(std::vector<int>{size}) {}
  // So many ranks on each node.
  explicit Team(const std::vector<int>& per_node) {
    for (size_t n = 0; n < per_node.size(); ++n)
      node_of_.insert(node_of_.end(), static_cast<size_t>(per_node[n]), static_cast<int>(n));
    size_ = static_cast<int>(node_of_.size());
    nodes_ = static_cast<int>(per_node.size());
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
    Member(Team& team, int rank) : team_(team) {
      world_.rank = rank;
      world_.size = team.size_;
      world_.node_of = team.node_of_;
      world_.node = team.node_of_[static_cast<size_t>(rank)];
      const auto first = std::find(world_.node_of.begin(), world_.node_of.end(), world_.node);
      world_.local_rank = rank - static_cast<int>(first - world_.node_of.begin());
      world_.local_size =
          static_cast<int>(std::count(world_.node_of.begin(), world_.node_of.end(), world_.node));
      world_.nodes = {"here"};
      for (int n = 1; n < team.nodes_; ++n) world_.nodes.push_back("there" + std::to_string(n));
    }
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
    World world_;
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

  int size_ = 0, nodes_ = 0;
  std::vector<int> node_of_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::pair<std::string, int>, Meeting> meetings_;
  std::map<std::pair<int, std::string>, int> turns_;
  int gone_ = 0;
};

}  // namespace trainlaunch
