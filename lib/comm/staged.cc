// Collectives of a device's memory by a communicator for host memory: each allocation has a twin
// there, through which the numbers pass. The calls run one after the other, as a Queue has them.

#include <atomic>
#include <optional>

#include "comm/device_comm.h"
#include "comm/queue.h"

namespace trainlaunch {

namespace {

class StagedComm final : public Comm, private Queue::Runner {
 public:
  StagedComm(std::unique_ptr<Comm> inner, Device& device, Seconds timeout)
      : inner_(std::move(inner)), device_(device) {
    queue_.emplace(static_cast<Queue::Runner&>(*this), timeout);
  }
  ~StagedComm() override { queue_.reset(); }

  const char* name() const override { return "staged"; }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  Result<View> alloc(std::string_view what, DType t, int64_t count) override {
    auto host = inner_->alloc(what, t, count);
    if (!host) return host;
    auto block = device_.allocate(static_cast<size_t>(count) * bytes_of(t));
    if (!block) return fail("memory for " + std::string(what) + ": " + block.error().what);
    if (!stream_) {
      auto stream = device_.stream();
      if (!stream) return forward(stream);
      stream_ = std::move(*stream);
    }
    memories_.push_back({std::move(*block), *host});
    return View(memories_.back().block->data(), t, {count});
  }

  Ticket reduce_scatter(View v, const Owners& owners, DType wire, Event after) override {
    return sum(Kind::reduce_scatter, v, owners, wire, std::move(after));
  }
  Ticket all_reduce(View v, const Owners& owners, DType wire, Event after) override {
    return sum(Kind::all_reduce, v, owners, wire, std::move(after));
  }
  Ticket all_gather(View v, const Owners& owners, Event after) override {
    return queue_->push(collective(Kind::all_gather, v, owners, std::move(after)));
  }
  Status wait(Ticket ticket, Deadline deadline) override { return queue_->wait(ticket, deadline); }

  Status all_sum(std::span<double> values, Deadline deadline) override {
    Call call;
    call.kind = Kind::all_sum;
    call.values = values;
    return queue_->run(std::move(call), deadline);
  }
  Status broadcast(View v, int root, Deadline deadline) override {
    Call call;
    call.kind = Kind::broadcast;
    call.view = v;
    call.root = root;
    return queue_->run(std::move(call), deadline);
  }
  Status barrier(Deadline deadline) override { return queue_->run(Call(), deadline); }

  void abort() noexcept override {
    stopped_ = true;
    inner_->abort();
  }
  Moved moved() const override { return inner_->moved(); }

 private:
  struct Memory {
    std::unique_ptr<Block> block;
    View host;
  };

  Ticket sum(Kind kind, View v, const Owners& owners, DType wire, Event after) {
    Call call = collective(kind, v, owners, std::move(after));
    call.wire = wire;
    return queue_->push(std::move(call));
  }
  Call collective(Kind kind, View v, const Owners& owners, Event after) const {
    Call call;
    call.kind = kind;
    call.view = v;
    call.owners = owners;
    call.after = std::move(after);
    const auto* begin = static_cast<const std::byte*>(v.p);
    for (uint64_t i = 0; i < memories_.size(); ++i) {
      const auto* memory = static_cast<const std::byte*>(memories_[i].block->data());
      if (begin < memory || begin + v.bytes() > memory + memories_[i].block->size()) continue;
      call.memory = i;
      call.offset = static_cast<uint64_t>(begin - memory);
      return call;
    }
    call.refused = "the view is not memory of this communicator";
    return call;
  }

  Status run(const Call& call) override {
    auto done = dispatch(call);
    if (!done && expired_) return fail(describe(call) + ": timed out");
    return done;
  }
  // Each piece of a call may take what is left of its time.
  Status dispatch(const Call& call) {
    switch (call.kind) {
      case Kind::reduce_scatter:
      case Kind::all_reduce:
      case Kind::all_gather:
        return run_collective(call);
      case Kind::all_sum:
        return inner_->all_sum(call.values, call.deadline);
      case Kind::broadcast:
        return inner_->broadcast(call.view, call.root, call.deadline);
      case Kind::barrier:
        return inner_->barrier(call.deadline);
    }
    return {};
  }

  Status run_collective(const Call& call) {
    const bool whole_goes = call.kind != Kind::all_gather;
    const bool whole_comes = call.kind != Kind::reduce_scatter;
    const View host(static_cast<std::byte*>(memories_[call.memory].host.p) + call.offset,
                    call.view.t, {call.view.size()});
    const int64_t mine = call.owners.offset(rank()), count = call.owners.count(rank());
    if (auto ok = arrive(call.after, call.deadline); !ok) return ok;

    // To the host goes what others need, back what they made of it.
    const auto own = [&](View v) { return v.slice(mine, count); };
    if (whole_goes)
      device_.download(*stream_, host, call.view);
    else if (count > 0)
      device_.download(*stream_, own(host), own(call.view));
    if (auto ok = arrive(stream_->record(), call.deadline); !ok) return ok;

    if (auto ok = inner_->wait(issue(call, host), call.deadline); !ok) return ok;

    if (whole_comes)
      device_.upload(*stream_, call.view, host);
    else if (count > 0)
      device_.upload(*stream_, own(call.view), own(host));
    return arrive(stream_->record(), call.deadline);
  }

  Ticket issue(const Call& call, View host) {
    switch (call.kind) {
      case Kind::reduce_scatter:
        return inner_->reduce_scatter(host, call.owners, call.wire, Event());
      case Kind::all_reduce:
        return inner_->all_reduce(host, call.owners, call.wire, Event());
      default:
        return inner_->all_gather(host, call.owners, Event());
    }
  }

  // An event, or the end of this communicator.
  Status arrive(const Event& event, Deadline deadline) const {
    for (;;) {
      constexpr Seconds slice{0.05};
      const Deadline soon{std::min(deadline.at, Deadline::in(slice).at)};
      auto done = event.wait(soon);
      if (done) return done;
      auto state = event.done();
      if (!state) return forward(state);
      if (stopped_) return fail("the communicator was aborted");
      if (deadline.over()) return done;
    }
  }

  void stop(Stop why) noexcept override {
    expired_ = expired_ || why == Stop::expired;
    abort();
  }
  void failed(const Error&) noexcept override { abort(); }
  void shut() noexcept override {}

  const std::unique_ptr<Comm> inner_;
  Device& device_;
  std::unique_ptr<Stream> stream_;  // of the copies
  std::vector<Memory> memories_;
  std::atomic<bool> stopped_{false}, expired_{false};
  std::optional<Queue> queue_;  // its thread uses all of the above
};

}  // namespace

std::unique_ptr<Comm> make_staged_comm(std::unique_ptr<Comm> inner, Device& device,
                                       const CommOptions& options) {
  return std::make_unique<StagedComm>(std::move(inner), device, options.timeout);
}

}  // namespace trainlaunch
