// A training step takes no memory: everything was taken before the first ones were over.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <fstream>

#include "train_runs.h"

// What asks for memory in this program, its libraries too, asks here first.
namespace {

std::atomic<bool> watched{false};
std::atomic<size_t> largest{0};

void asked_for(size_t bytes) {
  if (!watched.load(std::memory_order_relaxed)) return;
  size_t before = largest.load(std::memory_order_relaxed);
  while (bytes > before && !largest.compare_exchange_weak(before, bytes)) {
  }
}

}  // namespace

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CAN_WATCH 1
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t n) {
  asked_for(n);
  return __libc_malloc(n);
}
void* calloc(size_t n, size_t size) {
  asked_for(n * size);
  return __libc_calloc(n, size);
}
void* realloc(void* p, size_t n) {
  asked_for(n);
  return __libc_realloc(p, n);
}
void* aligned_alloc(size_t alignment, size_t n) {
  asked_for(n);
  return __libc_memalign(alignment, n);
}
}
#else
#define CAN_WATCH 0
#endif

using namespace trainlaunch;

namespace {

constexpr uint64_t first = 3, last = 23;  // the steps after which memory is looked at

struct Memory {
  long faults = 0;
  size_t pages = 0;  // of the address space: what mmap and brk change

  static Memory now() {
    Memory m;
    rusage use{};
    getrusage(RUSAGE_SELF, &use);
    m.faults = use.ru_minflt;
    std::ifstream("/proc/self/statm") >> m.pages;
    return m;
  }
};

class Watching final : public testing::PassedOn<WorkerControl> {
 public:
  explicit Watching(WorkerControl& control) : PassedOn(control), control_(control) {}
  const std::vector<int>& local_sockets() const override { return control_.local_sockets(); }
  bool failed(std::string_view why) noexcept override { return control_.failed(why); }
  void progress(uint64_t step, std::string_view) noexcept override {
    if (step == first && !watched) {
      before_ = Memory::now();
      before_ = Memory::now();  // the first look may have taken memory itself
      watched = true;
    }
    if (step == last && watched) {
      watched = false;
      after_ = Memory::now();
    }
  }

  Status judge() const {
    if (after_.pages == 0) return fail("nobody told how far the run was");
    if (after_.pages != before_.pages)
      return fail(std::to_string(static_cast<long>(after_.pages - before_.pages)) +
                  " pages mapped in between");
    if (after_.faults - before_.faults >= 16)
      return fail(std::to_string(after_.faults - before_.faults) + " faults in between");
    if (largest > size_t{64} << 10) return fail("somebody took " + std::to_string(largest));
    return {};
  }

 private:
  WorkerControl& control_;
  Memory before_, after_;
};

}  // namespace

TEST_CASE("twenty steps take no memory") {
  if (!CAN_WATCH) {
    MESSAGE("not watched: another malloc stands in for glibc's");
    return;
  }
  for (const auto& per_node : std::vector<std::vector<int>>{{1}, {2}, {1, 1}}) {
    CAPTURE(per_node.size());
    CAPTURE(per_node[0]);
    Temporary dir;
    RunConfig c = small(dir);
    c.model = {2, 4, 128, 64};
    c.train.steps = 25;
    c.train.threads = 2;
    c.parallel.bucket_mib = 0.5;
    const auto all = as_ranks(per_node, [&](WorkerControl& control) -> Status {
      Watching watching(control);
      if (auto s = train(c, watching); !s) return s;
      return watching.judge();
    });
    for (const std::string& s : all) CHECK(s == "");
  }
}
