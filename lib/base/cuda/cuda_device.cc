#include "base/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <fstream>
#include <optional>
#include <string>

namespace trainlaunch {

namespace {

std::string text(const std::string& what, cudaError_t error) {
  return what + ": " + cudaGetErrorString(error);
}

class CudaEvent final : public Event::Impl {
 public:
  CudaEvent() = default;
  ~CudaEvent() override {
    if (event_) cudaEventDestroy(event_);
  }
  CudaEvent(const CudaEvent&) = delete;

  cudaError_t record(cudaStream_t stream) {
    if (const auto e = cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)) return e;
    return cudaEventRecord(event_, stream);
  }
  Result<bool> done() override {
    const cudaError_t e = cudaEventQuery(event_);
    if (e == cudaErrorNotReady) return false;
    if (e != cudaSuccess) return fail(text("work on the GPU failed", e));
    return true;
  }
  void* native() override { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// The event of a stream that is out of order for good.
class FailedEvent final : public Event::Impl {
 public:
  explicit FailedEvent(Error error) : error_(std::move(error)) {}
  Result<bool> done() override { return tl::unexpected<Error>(error_); }
  void* native() override { return nullptr; }

 private:
  Error error_;
};

class CudaStream final : public Stream {
 public:
  static Result<std::unique_ptr<Stream>> make(int device) {
    auto stream = std::make_unique<CudaStream>(device);
    if (const auto e = cudaStreamCreateWithFlags(&stream->stream_, cudaStreamNonBlocking)) {
      return fail(text("no stream on the GPU", e));
    }
    return stream;
  }
  explicit CudaStream(int device) : device_(device) {}
  ~CudaStream() override {
    if (stream_) cudaStreamDestroy(stream_);
  }

  Event record() override {
    if (!error_) {
      auto event = std::make_shared<CudaEvent>();
      check("cannot record an event", [&] { return event->record(stream_); });
      if (!error_) return Event(std::move(event));
    }
    return Event(std::make_shared<FailedEvent>(*error_));
  }

  void wait(const Event& event) override {
    if (void* native = event.native()) {
      check("cannot wait for an event",
            [&] { return cudaStreamWaitEvent(stream_, static_cast<cudaEvent_t>(native), 0); });
      return;
    }
    if (const auto done = event.done(); !done) return keep(done.error());
    if (*event.done()) return;
    // The host's own work, a communicator's say: a thread of the driver waits for it in the
    // stream's order.
    auto* copy = new Event(event);
    check("cannot wait for the host", [&] {
      return cudaLaunchHostFunc(
          stream_,
          [](void* p) {
            const std::unique_ptr<Event> waited(static_cast<Event*>(p));
            (void)waited->wait(Deadline::never());
          },
          copy);
    });
    if (error_) delete copy;
  }
  void* native() override { return stream_; }

  void copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    check("cannot copy", [&] { return cudaMemcpyAsync(to, from, bytes, kind, stream_); });
  }

  void keep(Error error) {
    if (!error_) error_ = std::move(error);
  }

 private:
  // Nothing more is enqueued after the first error.
  template <class F>
  void check(const char* what, const F& call) {
    if (error_) return;
    cudaError_t e = cudaSetDevice(device_);
    if (e == cudaSuccess) e = call();
    if (e != cudaSuccess) keep({text(std::string(what) + " on the GPU", e)});
  }

  int device_;
  cudaStream_t stream_ = nullptr;
  std::optional<Error> error_;
};

class CudaBlock final : public Block {
 public:
  static Result<std::unique_ptr<Block>> make(const std::string& device, size_t bytes) {
    auto block = std::make_unique<CudaBlock>(device);
    if (const auto e = cudaMalloc(&block->p_, bytes)) {
      block->p_ = nullptr;
      return fail(text("no memory for " + std::to_string(bytes >> 20) + " MiB on " + device, e));
    }
    block->size_ = bytes;
    if (const auto e = cudaMemset(block->p_, 0, bytes)) {
      return fail(text("cannot clear memory of " + device, e));
    }
    // Streams of ours do not wait for the default one, which cleared it.
    if (const auto e = cudaDeviceSynchronize()) {
      return fail(text("cannot clear memory of " + device, e));
    }
    return block;
  }
  explicit CudaBlock(std::string device) : device_(std::move(device)) {}
  ~CudaBlock() override {
    if (p_) cudaFree(p_);
  }
  std::string describe() const override {
    return std::to_string((size_ + (1 << 20) - 1) >> 20) + " MiB of " + device_;
  }

 private:
  std::string device_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, const std::string& model)
      : index_(index), name_("cuda:" + std::to_string(index) + " (" + model + ")") {}
  int index() const { return index_; }

  const char* name() const override { return name_.c_str(); }
  bool host_readable() const override { return false; }
  Result<std::unique_ptr<Block>> allocate(size_t bytes) override {
    if (auto s = use(); !s) return forward(s);
    return CudaBlock::make(name_, bytes);
  }
  Result<std::unique_ptr<Stream>> stream() override {
    if (auto s = use(); !s) return forward(s);
    return CudaStream::make(index_);
  }
  void upload(Stream& s, View device, View host) override {
    static_cast<CudaStream&>(s).copy(device.p, host.p, host.bytes(), cudaMemcpyHostToDevice);
  }
  void download(Stream& s, View host, View device) override {
    static_cast<CudaStream&>(s).copy(host.p, device.p, host.bytes(), cudaMemcpyDeviceToHost);
  }

  // The current device is a thread's own matter in CUDA, so every call from outside sets it.
  Status use() const {
    if (const auto e = cudaSetDevice(index_)) return fail(text("cannot use " + name_, e));
    return {};
  }

 private:
  int index_;
  std::string name_;
};

}  // namespace

int cuda_devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

// The kernel's boot and the place on its PCI bus. Partitions of one GPU share it, as NCCL sees
// them.
Result<std::string> cuda_identity(const Device& device) {
  std::string id(32, '\0');
  const int index = static_cast<const CudaDevice&>(device).index();
  if (const auto e = cudaDeviceGetPCIBusId(id.data(), static_cast<int>(id.size()), index))
    return fail(text(std::string("cannot ask ") + device.name() + " where it is", e));
  id.resize(id.find('\0'));
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return boot + " " + id;
}

void keep_error(Stream& stream, Error error) {
  static_cast<CudaStream&>(stream).keep(std::move(error));
}

Result<std::unique_ptr<Device>> make_cuda_device(int index) {
  int count = 0;
  if (const auto e = cudaGetDeviceCount(&count)) {
    return fail(text("no GPU to be used here", e) + "; device=cpu needs none");
  }
  if (index < 0 || index >= count) {
    return fail("no cuda:" + std::to_string(index) + " here: this process sees " +
                std::to_string(count) + " GPU(s)");
  }
  cudaDeviceProp properties{};
  if (const auto e = cudaGetDeviceProperties(&properties, index)) {
    return fail(text("cannot ask what cuda:" + std::to_string(index) + " is", e));
  }
  auto device = std::make_unique<CudaDevice>(index, properties.name);
  if (auto s = device->use(); !s) return forward(s);
  return device;
}

}  // namespace trainlaunch
