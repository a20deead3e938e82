// Where memory and streams come from. Everything that computes is enqueued on a Stream and may run
// later; the host learns that it has run from an Event. On the host device a Stream runs its work
// at once, so its Events are always done; code written against this interface is right on both.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/time.h"
#include "base/view.h"

namespace trainlaunch {

// A point in a Stream's order. Copies share the point; a default Event is done.
class Event {
 public:
  struct Impl {
    virtual ~Impl() = default;
    virtual Result<bool> done() = 0;  // never blocks; an error of the device surfaces here
    virtual void* native() = 0;       // the device's own handle (cudaEvent_t)
  };

  Event() = default;
  explicit Event(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  Result<bool> done() const { return impl_ ? impl_->done() : Result<bool>(true); }
  Status wait(Deadline deadline) const;  // blocks the host
  void* native() const { return impl_ ? impl_->native() : nullptr; }

 private:
  std::shared_ptr<Impl> impl_;
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual Event record() = 0;                 // done when all work enqueued so far is
  virtual void wait(const Event& event) = 0;  // later work starts after the event; host not blocked
  virtual void* native() = 0;                 // the device's own handle (cudaStream_t), or null
};

// Memory of a device; freed with the object.
class Block {
 public:
  virtual ~Block() = default;
  void* data() const { return p_; }
  size_t size() const { return size_; }
  // How the memory is backed, for people: "64 MiB, huge pages".
  virtual std::string describe() const = 0;

 protected:
  void* p_ = nullptr;
  size_t size_ = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const char* name() const = 0;    // "cpu", "cuda:0 (NVIDIA H200)"
  virtual bool host_readable() const = 0;  // may the host dereference this device's memory?
  virtual Result<std::unique_ptr<Block>> allocate(size_t bytes) = 0;  // zeroed
  virtual Result<std::unique_ptr<Stream>> stream() = 0;
  // Copies between this device and host memory, enqueued; the host side must stay alive and
  // unchanged until an event recorded after the copy is done. Sizes in bytes must be equal.
  virtual void upload(Stream& s, View device, View host) = 0;
  virtual void download(Stream& s, View host, View device) = 0;
};

// The machine's own memory and processors. Blocks come in huge pages where the system gives them,
// and are touched before they are returned: the first touch of a page is the slowest.
std::unique_ptr<Device> make_host_device();

}  // namespace trainlaunch
