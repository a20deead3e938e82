#include "comm/mesh.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <sched.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "comm/signals.h"

namespace trainlaunch {

struct Transfer::Impl {
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  int peer;
  bool sends;
};
Transfer::Transfer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Transfer::Transfer(Transfer&&) noexcept = default;
Transfer& Transfer::operator=(Transfer&&) noexcept = default;
Transfer::~Transfer() = default;

namespace {

using Millis = std::chrono::milliseconds;

// Gloo adds timeouts to the present, so that "never" has to be finite.
Millis left(Deadline deadline) {
  const int ms = deadline.poll_ms();
  return ms < 0 ? Millis(std::chrono::hours(24 * 365)) : Millis(ms);
}

// Gloo's meeting place, over the control channel: every rank says where it listens, and one gather
// tells everyone. The interface knows exceptions only; they pass through Gloo to connect_mesh().
class GatherStore final : public gloo::rendezvous::Store {
 public:
  GatherStore(Control& control, Deadline deadline) : control_(control), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    if (key != std::to_string(control_.world().rank)) return;
    auto all = control_.gather("communicator: addresses", {data.data(), data.size()}, deadline_);
    if (!all) throw std::runtime_error(all.error().what);
    all_ = std::move(*all);
  }
  std::vector<char> get(const std::string& key) override {
    // Gloo asks for host names too ("rank_3"), which it needs for other transports.
    if (key.starts_with("rank_")) return {};
    const std::string& value = all_.at(std::stoul(key));
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&, const Millis&) override {}

 private:
  Control& control_;
  Deadline deadline_;
  std::vector<std::string> all_;
};

// Gloo's thread polls without sleeping while another holds the lock that it needs. It must not push
// that other aside when it wakes: on busy processors it then spins for whole time slices (measured:
// 2.7 ms of processor time instead of 0.4 for exchanging 1 MB). As a batch thread it never does.
std::shared_ptr<gloo::transport::Device> make_device(const std::string& address) {
  SignalsBlocked blocked;
  const int policy = sched_getscheduler(0);
  sched_param priority{};
  sched_getparam(0, &priority);
  const sched_param none{};
  sched_setscheduler(0, SCHED_BATCH, &none);
  const auto restore = [&] { sched_setscheduler(0, policy, &priority); };
  try {
    auto device = gloo::transport::tcp::CreateDevice(address.c_str());
    restore();
    return device;
  } catch (...) {
    restore();
    throw;
  }
}

class GlooMesh final : public Mesh {
 public:
  GlooMesh(const World& world, std::shared_ptr<gloo::rendezvous::Context> context)
      : world_(world), context_(std::move(context)) {}
  ~GlooMesh() override {
    NoBrokenPipe guard;
    context_.reset();
  }

  Result<Transfer> send(int rank, uint64_t slot, const void* p, size_t bytes) override {
    return start(true, rank, slot, const_cast<void*>(p), bytes);
  }
  Result<Transfer> receive(int rank, uint64_t slot, void* p, size_t bytes) override {
    return start(false, rank, slot, p, bytes);
  }

  Status finish(Transfer& transfer, Deadline deadline) override {
    Transfer::Impl& t = transfer.impl();
    {
      std::lock_guard lock(mutex_);
      if (stop_ != Stop::none) return stopped(t);
      waited_ = &t;
    }
    bool done = false;
    std::string error;
    try {
      done = t.sends ? t.buffer->waitSend(nullptr, left(deadline))
                     : t.buffer->waitRecv(nullptr, left(deadline));
    } catch (const std::exception& e) {
      error = e.what();
    }
    std::lock_guard lock(mutex_);
    waited_ = nullptr;
    if (done) return {};
    if (stop_ != Stop::none) return stopped(t);
    if (deadline.over()) return timed_out(t);
    return broken(t.peer, error);
  }

  void stop(Stop why) noexcept override {
    std::lock_guard lock(mutex_);
    if (stop_ == Stop::none) stop_ = why;
    if (!waited_) return;
    if (waited_->sends)
      waited_->buffer->abortWaitSend();
    else
      waited_->buffer->abortWaitRecv();
  }

  void close() noexcept override {
    NoBrokenPipe guard;
    for (int i = 0; i < world_.size; ++i) {
      if (i == world_.rank) continue;
      try {
        context_->getPair(i)->close();
      } catch (const std::exception&) {
        // It is closed already, which is what was wanted.
      }
    }
  }

 private:
  Result<Transfer> start(bool sends, int rank, uint64_t slot, void* p, size_t bytes) {
    try {
      NoBrokenPipe guard;
      auto buffer = context_->createUnboundBuffer(p, bytes);
      if (sends)
        buffer->send(rank, slot);
      else
        buffer->recv(rank, slot);
      return Transfer(
          std::make_unique<Transfer::Impl>(Transfer::Impl{std::move(buffer), rank, sends}));
    } catch (const std::exception& e) {
      return broken(rank, e.what());
    }
  }

  tl::unexpected<Error> broken(int peer, std::string why) const {
    std::replace(why.begin(), why.end(), '\n', ' ');
    return fail("the connection to " + describe_rank(world_, peer) + " broke: " + why);
  }
  tl::unexpected<Error> timed_out(const Transfer::Impl& t) const {
    return fail("timed out waiting for " + describe_rank(world_, t.peer) +
                (t.sends ? " to receive" : " to send"));
  }
  tl::unexpected<Error> stopped(const Transfer::Impl& t) const {
    if (stop_ == Stop::expired) return timed_out(t);
    return fail("aborted while waiting for " + describe_rank(world_, t.peer));
  }

  World world_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::mutex mutex_;
  Transfer::Impl* waited_ = nullptr;
  Stop stop_ = Stop::none;
};

}  // namespace

Result<std::unique_ptr<Mesh>> connect_mesh(Control& control, const std::string& address,
                                           Deadline deadline) {
  const World& world = control.world();
  try {
    NoBrokenPipe guard;
    GatherStore store(control, deadline);
    auto device = make_device(address);
    auto context = std::make_shared<gloo::rendezvous::Context>(world.rank, world.size);
    // Gloo waits five times as long for a connection.
    context->setTimeout(std::max(left(deadline) / 5, Millis(1)));
    context->connectFullMesh(store, device);
    return std::make_unique<GlooMesh>(world, std::move(context));
  } catch (const std::exception& e) {
    std::string why = e.what();
    std::replace(why.begin(), why.end(), '\n', ' ');
    return fail("cannot connect the ranks over " + address + ": " + why);
  }
}

}  // namespace trainlaunch
