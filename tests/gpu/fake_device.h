// A device whose memory is the host's, but whose streams run later, each in a thread of its own:
// what forgets to wait for an event comes out wrong.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/bf16.h"
#include "comm/device_comm.h"

namespace trainlaunch::testing {

class FakeStream final : public Stream {
 public:
  FakeStream() : thread_([this] { run(); }) {}
  ~FakeStream() override {
    push({});
    thread_.join();
  }
  void push(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
  }

  Event record() override {
    auto point = std::make_shared<Point>();
    push([point] { point->reached = true; });
    return Event(std::move(point));
  }
  void wait(const Event& event) override {
    push([event] { (void)event.wait(Deadline::in(Seconds(30))); });
  }
  void* native() override { return this; }

 private:
  struct Point final : Event::Impl {
    std::atomic<bool> reached{false};
    Result<bool> done() override { return reached.load(); }
    void* native() override { return nullptr; }
  };

  void run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !work_.empty(); });
      const std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      if (!work) return;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  std::thread thread_;
};

class FakeDevice final : public Device {
 public:
  const char* name() const override { return "fake"; }
  bool host_readable() const override { return false; }
  Result<std::unique_ptr<Block>> allocate(size_t bytes) override {
    return std::make_unique<Memory>(bytes);
  }
  Result<std::unique_ptr<Stream>> stream() override { return std::make_unique<FakeStream>(); }
  void upload(Stream& s, View device, View host) override { copy(s, device, host); }
  void download(Stream& s, View host, View device) override { copy(s, host, device); }

 private:
  struct Memory final : Block {
    explicit Memory(size_t bytes) : memory(new std::byte[bytes]()) {
      p_ = memory.get();
      size_ = bytes;
    }
    std::string describe() const override { return "fake"; }
    std::unique_ptr<std::byte[]> memory;
  };
  static void copy(Stream& s, View to, View from) {
    static_cast<FakeStream&>(s).push([=] { std::memcpy(to.p, from.p, from.bytes()); });
  }
};

inline DeviceMath fake_math() {
  const auto on = [](Stream& s) -> FakeStream& { return static_cast<FakeStream&>(s); };
  DeviceMath math;
  math.sum = [on](Stream& s, View dst, std::span<const View> parts) {
    on(s).push([dst, in = std::vector<View>(parts.begin(), parts.end())] {
      for (int64_t i = 0; i < dst.size(); ++i) {
        float sum = in[0].as<float>()[i];
        for (size_t k = 1; k < in.size(); ++k) sum += in[k].as<float>()[i];
        dst.as<float>()[i] = sum;
      }
    });
  };
  math.copy = [on](Stream& s, View from, View to) {
    on(s).push([=] {
      const auto* halves = static_cast<const uint16_t*>(from.p);
      for (int64_t i = 0; i < to.size() && from.t != to.t; ++i) {
        if (to.t == DType::bf16)
          static_cast<uint16_t*>(to.p)[i] = bf16_of(from.as<float>()[i]);
        else
          to.as<float>()[i] = float_of(halves[i]);
      }
      if (from.t == to.t) std::memcpy(to.p, from.p, to.bytes());
    });
  };
  math.clear = [on](Stream& s, View v) { on(s).push([=] { std::memset(v.p, 0, v.bytes()); }); };
  return math;
}

}  // namespace trainlaunch::testing
