#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <thread>

#include "base/device.h"

namespace trainlaunch {

namespace {

constexpr size_t huge_page = size_t{2} << 20;

// Whole ones, of which something needs one at least.
std::string mebibytes(size_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

class HostBlock final : public Block {
 public:
  static Result<std::unique_ptr<Block>> make(size_t bytes) {
    auto block = std::make_unique<HostBlock>();
    // Room to begin at a huge page's boundary, or the first and last part would be small pages.
    block->mapped_ = (bytes + huge_page - 1) / huge_page * huge_page + huge_page;
    void* p =
        mmap(nullptr, block->mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
      return fail_errno("no memory for " + mebibytes(bytes));
    }
    block->map_ = p;
    block->p_ = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(p) + huge_page - 1) &
                                        ~(huge_page - 1));
    block->size_ = bytes;
    block->huge_ = madvise(block->p_, block->mapped_ - huge_page, MADV_HUGEPAGE) == 0;
    std::memset(block->p_, 0, bytes);
    return block;
  }
  ~HostBlock() override {
    if (map_) munmap(map_, mapped_);
  }
  std::string describe() const override {
    return mebibytes(size_) + (huge_ ? ", huge pages asked for" : ", small pages");
  }

 private:
  void* map_ = nullptr;
  size_t mapped_ = 0;
  bool huge_ = false;
};

class HostStream final : public Stream {
 public:
  Event record() override { return Event(); }
  // Host work runs when it is enqueued, so the wait is the host's. What it waits for (a
  // communicator's thread, say) has a deadline of its own.
  void wait(const Event& event) override { (void)event.wait(Deadline::never()); }
  void* native() override { return nullptr; }
};

class HostDevice final : public Device {
 public:
  const char* name() const override { return "cpu"; }
  bool host_readable() const override { return true; }
  Result<std::unique_ptr<Block>> allocate(size_t bytes) override { return HostBlock::make(bytes); }
  Result<std::unique_ptr<Stream>> stream() override { return std::make_unique<HostStream>(); }
  void upload(Stream&, View device, View host) override {
    std::memcpy(device.p, host.p, host.bytes());
  }
  void download(Stream&, View host, View device) override {
    std::memcpy(host.p, device.p, host.bytes());
  }
};

}  // namespace

Status Event::wait(Deadline deadline) const {
  for (int spins = 0;; ++spins) {
    auto r = done();
    if (!r) return forward(r);
    if (*r) return {};
    if (deadline.over()) return fail("timed out waiting for the device");
    if (spins > 1000) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

std::unique_ptr<Device> make_host_device() { return std::make_unique<HostDevice>(); }

}  // namespace trainlaunch
