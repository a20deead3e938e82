// A world of one: every collective is done before it is issued.
#include <atomic>
#include <map>
#include <vector>

#include "comm/kinds.h"

namespace trainlaunch {

namespace {

class SingleComm final : public Comm {
 public:
  explicit SingleComm(Device* device) {
    if (device) {
      device_ = device;
      return;
    }
    host_ = make_host_device();
    device_ = host_.get();
  }
  const char* name() const override { return "single"; }
  int rank() const override { return 0; }
  int size() const override { return 1; }

  Result<View> alloc(std::string_view what, DType t, int64_t count) override {
    auto block = device_->allocate(static_cast<size_t>(count) * bytes_of(t));
    if (!block) return fail("memory for " + std::string(what) + ": " + block.error().what);
    blocks_.push_back(std::move(*block));
    return View(blocks_.back()->data(), t, {count});
  }

  Ticket reduce_scatter(View, const Owners&, DType, Event after) override { return issue(after); }
  Ticket all_reduce(View, const Owners&, DType, Event after) override { return issue(after); }
  Ticket all_gather(View, const Owners&, Event after) override { return issue(after); }

  Status wait(Ticket ticket, Deadline deadline) override {
    if (ticket == 0 || ticket > issued_) return fail("wait: no such ticket");
    if (aborted_) return fail(aborted_text);
    auto pending = pending_.extract(ticket);
    return pending ? pending.mapped().wait(deadline) : Status();
  }

  Status all_sum(std::span<double>, Deadline) override { return alive(); }
  Status broadcast(View, int, Deadline) override { return alive(); }
  Status barrier(Deadline) override { return alive(); }

  void abort() noexcept override { aborted_ = true; }
  Moved moved() const override { return {}; }

 private:
  static constexpr const char* aborted_text = "the communicator was aborted";

  Ticket issue(Event after) {
    pending_.emplace(++issued_, std::move(after));
    return issued_;
  }
  Status alive() const {
    if (aborted_) return fail(aborted_text);
    return {};
  }

  std::unique_ptr<Device> host_;
  Device* device_;
  std::vector<std::unique_ptr<Block>> blocks_;
  Ticket issued_ = 0;
  std::map<Ticket, Event> pending_;  // not waited for yet
  std::atomic<bool> aborted_{false};
};

}  // namespace

std::unique_ptr<Comm> make_single_comm() { return std::make_unique<SingleComm>(nullptr); }
std::unique_ptr<Comm> make_single_comm(Device& device) {
  return std::make_unique<SingleComm>(&device);
}

}  // namespace trainlaunch
