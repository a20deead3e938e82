#include "boot/boot.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>

namespace trainlaunch {
namespace {

class SingleControl final : public WorkerControl {
 public:
  const World& world() const override { return world_; }

  Status put(std::string_view key, std::string_view value) override {
    if (value.size() > max_value) return too_long(key);
    std::lock_guard lock(mutex_);
    if (!store_.emplace(key, value).second) return fail("'" + std::string(key) + "' was put twice");
    put_.notify_all();
    return {};
  }

  Result<std::string> get(std::string_view key, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    const auto there = [&] { return store_.contains(std::string(key)); };
    if (deadline.at == Clock::time_point::max()) {
      put_.wait(lock, there);
    } else if (!put_.wait_until(lock, deadline.at, there)) {
      return fail("no rank has put '" + std::string(key) + "' in time");
    }
    return store_.at(std::string(key));
  }

  Result<std::vector<std::string>> gather(std::string_view name, std::string_view mine,
                                          Deadline) override {
    if (mine.size() > max_value) return too_long(name);
    return std::vector<std::string>{std::string(mine)};
  }

  const std::vector<int>& local_sockets() const override { return no_sockets_; }
  void progress(uint64_t, std::string_view) noexcept override {}
  bool failed(std::string_view) noexcept override { return false; }

 private:
  static tl::unexpected<Error> too_long(std::string_view name) {
    return fail("the value of '" + std::string(name) + "' is longer than 1 MiB");
  }

  World world_;
  std::vector<int> no_sockets_;
  std::mutex mutex_;
  std::condition_variable put_;
  std::map<std::string, std::string> store_;
};

}  // namespace

Status Control::barrier(std::string_view name, Deadline deadline) {
  auto all = gather(name, "", deadline);
  if (!all) return forward(all);
  return {};
}

Result<bool> Control::vote(std::string_view name, bool mine, Deadline deadline) {
  auto all = gather(name, mine ? "1" : "0", deadline);
  if (!all) return forward(all);
  return std::all_of(all->begin(), all->end(), [](const std::string& v) { return v == "1"; });
}

std::unique_ptr<WorkerControl> make_single_worker_control() {
  return std::make_unique<SingleControl>();
}

std::unique_ptr<Control> make_single_control() { return make_single_worker_control(); }

}  // namespace trainlaunch
