// Ranks as threads of a test, with a control channel made of a mutex.
#pragma once

#include <condition_variable>
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
  explicit Team(int size) : size_(size) {}

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
      world_.rank = world_.local_rank = rank;
      world_.size = world_.local_size = team.size_;
      world_.nodes = {"here"};
      world_.node_of.assign(static_cast<size_t>(team.size_), 0);
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
                                            Deadline) override {
      return team_.gather(world_.rank, std::string(name), std::string(mine));
    }
    const std::vector<int>& local_sockets() const override { return sockets_; }
    void progress(uint64_t, std::string_view) noexcept override {}
    bool failed(std::string_view) noexcept override { return false; }

   private:
    Team& team_;
    World world_;
    std::vector<int> sockets_;
  };

  Result<std::vector<std::string>> gather(int rank, const std::string& name, std::string mine) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ < size_ && !full_; });
    if (arrived_ == 0) {
      name_ = name;
      slots_.assign(static_cast<size_t>(size_), "");
    }
    if (name != name_)
      return fail("rank " + std::to_string(rank) + " gathers " + name + " where others gather " +
                  name_);
    slots_[static_cast<size_t>(rank)] = std::move(mine);
    if (++arrived_ == size_) full_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return full_ || gone_ > 0; });
    if (!full_) return fail("a rank has gone while others gather " + name);
    auto all = slots_;
    if (--arrived_ == 0) full_ = false;
    changed_.notify_all();
    return all;
  }
  void leave() {
    std::lock_guard lock(mutex_);
    ++gone_;
    changed_.notify_all();
  }

  int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::string name_;
  std::vector<std::string> slots_;
  int arrived_ = 0, gone_ = 0;
  bool full_ = false;
};

}  // namespace trainlaunch
