// Kernels on the host: the threads of a block are fibers that take turns at barriers and at what
// warps do together, so that every kernel of lib/ops/cuda runs, and is tested, without a GPU.
//
// It is stricter than a GPU where that finds mistakes:
//   - the warps of a block run one after the other, each as far as it gets until the next barrier,
//     in rising or in falling order (simt::order): what depends on a barrier that is not there
//     comes out wrong in one of them;
//   - asynchronous copies arrive as late as allowed, when they are waited for, in rising order, and
//     at once in falling order;
//   - shared memory that a launch asks for begins as NaN in every block;
//   - lanes of a warp that do not meet in the same instruction, or threads that wait for ones that
//     have ended, end the program.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define TL_SIMT_EMULATED
#define TL_DEVICE inline
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

namespace simt {

constexpr int lanes = 32;

enum class Order { rising, falling };
inline Order order = Order::rising;

[[noreturn]] inline void wrong(const char* what) {
  std::fprintf(stderr, "kernel: %s\n", what);
  std::abort();
}

struct CopyAsync {
  void* to;
  const void* from;
};

struct Fiber {
  ucontext_t first;  // how it begins; later it goes on at `next`
  jmp_buf next;
  std::unique_ptr<std::byte[]> stack;
  void* fake_stack = nullptr;
  dim3 thread;
  bool begun = false, ended = false;
  uint64_t barriers = 0, meetings = 0;            // passed so far: of the block, of the warp
  std::vector<std::vector<CopyAsync>> committed;  // oldest first
  std::vector<CopyAsync> copies;
};

// What the lanes of a warp do together, and what each brings to it.
enum class Together { none, sync, shuffle, matrices, product };
struct Meeting {
  Together what = Together::none;
  std::array<std::array<std::byte, 64>, lanes> brought;
};
struct Warp {
  uint64_t arrivals = 0;
  std::array<Meeting, 2> meetings;  // the present one and the last, which some lanes still read
};

// What lives across a switch of fibers is not changed after it, which compilers cannot know.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wclobbered"
#endif

class Machine {
 public:
  dim3 grid, block, at;  // sizes, and the block that runs
  Fiber* running = nullptr;
  std::vector<float> shared;

  void run(dim3 blocks, unsigned threads, size_t shared_bytes,
           const std::function<void()>& kernel) {
    grid = blocks;
    block = dim3(threads);
    kernel_ = &kernel;
    while (fibers_.size() < threads) add_fiber();
    for (unsigned z = 0; z < grid.z; ++z)
      for (unsigned y = 0; y < grid.y; ++y)
        for (unsigned x = 0; x < grid.x; ++x) {
          at = dim3(x, y, z);
          shared.assign(shared_bytes / sizeof(float) + 4, NAN);
          run_block(threads);
        }
  }

  void barrier() {
    ++block_arrivals_;
    ++progress_;
    const uint64_t all = ++running->barriers * block.x;
    while (block_arrivals_ < all) yield();
  }

  // All lanes bring something; then each may see what every lane brought.
  template <class T>
  const Meeting& meet(Together what, const T& mine) {
    static_assert(sizeof(T) <= 64);
    const unsigned index = running->thread.x / lanes, lane = running->thread.x % lanes;
    Warp& warp = warps_[index];
    const unsigned members = std::min<unsigned>(lanes, block.x - index * lanes);
    Meeting& meeting = warp.meetings[running->meetings % 2];
    if (warp.arrivals == running->meetings * members) meeting.what = what;
    if (meeting.what != what) wrong("lanes of a warp do different things");
    std::memcpy(meeting.brought[lane].data(), &mine, sizeof(T));
    ++warp.arrivals;
    ++progress_;
    const uint64_t all = ++running->meetings * members;
    while (warp.arrivals < all) yield();
    return meeting;
  }

  unsigned lane() const { return running->thread.x % lanes; }

 private:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr size_t stack_bytes = 512 << 10;
#else
  static constexpr size_t stack_bytes = 64 << 10;
#endif

  void add_fiber() {
    fibers_.push_back(std::make_unique<Fiber>());
    Fiber& f = *fibers_.back();
    f.stack.reset(new std::byte[stack_bytes]);
    getcontext(&f.first);
    f.first.uc_stack.ss_sp = f.stack.get();
    f.first.uc_stack.ss_size = stack_bytes;
    f.first.uc_link = nullptr;
    makecontext(&f.first, &Machine::live, 0);
  }

  void run_block(unsigned threads) {
    block_arrivals_ = 0;
    const unsigned warps = (threads + lanes - 1) / lanes;
    warps_.assign(warps, Warp());
    for (unsigned i = 0; i < threads; ++i) {
      Fiber& f = *fibers_[i];
      f.thread = dim3(i, 0, 0);
      f.ended = false;
      f.barriers = f.meetings = 0;
      f.committed.clear();
      f.copies.clear();
    }
    unsigned left = threads;
    while (left > 0) {
      const uint64_t before = progress_;
      for (unsigned n = 0; n < warps; ++n) {
        const unsigned w = order == Order::rising ? n : warps - 1 - n;
        left -= run_warp(w * lanes, std::min(threads, (w + 1) * lanes));
      }
      if (progress_ == before) wrong("threads wait for each other for ever");
    }
  }

  // As far as it gets; how many of its threads have ended.
  unsigned run_warp(unsigned begin, unsigned end) {
    unsigned ended = 0;
    for (uint64_t before = progress_ - 1; progress_ != before;) {
      before = progress_;
      for (unsigned n = begin; n < end; ++n) {
        Fiber& f = *fibers_[order == Order::rising ? n : begin + end - 1 - n];
        if (f.ended) continue;
        resume(f);
        ended += f.ended;
      }
    }
    return ended;
  }

  // Switches leave the signal mask alone, which swapcontext() asks the kernel for every time.
  void resume(Fiber& f) {
    running = &f;
    start_switch(&scheduler_fake_, f.stack.get(), stack_bytes);
    if (_setjmp(scheduler_) == 0) {
      if (f.begun) _longjmp(f.next, 1);
      f.begun = true;
      setcontext(&f.first);
    }
    finish_switch(scheduler_fake_);
  }
  void yield() {
    Fiber& f = *running;
    start_switch(&f.fake_stack, scheduler_stack_, scheduler_size_);
    if (_setjmp(f.next) == 0) _longjmp(scheduler_, 1);
    finish_switch(f.fake_stack);
  }
  // A fiber runs one kernel after the other.
  static void live();

  void start_switch([[maybe_unused]] void** fake, [[maybe_unused]] const void* stack,
                    [[maybe_unused]] size_t size) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(fake, stack, size);
#endif
  }
  void finish_switch([[maybe_unused]] void* fake) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  }

  const std::function<void()>* kernel_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Warp> warps_;
  uint64_t block_arrivals_ = 0, progress_ = 0;
  jmp_buf scheduler_;
  void* scheduler_fake_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_size_ = 0;
};

inline thread_local Machine machine;  // streams that run in threads have one each

inline void Machine::live() {
  Machine& m = machine;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &m.scheduler_stack_, &m.scheduler_size_);
#endif
  for (;;) {
    (*m.kernel_)();
    m.running->ended = true;
    ++m.progress_;
    m.yield();
  }
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

}  // namespace simt

#define threadIdx (::simt::machine.running->thread)
#define blockIdx (::simt::machine.at)
#define blockDim (::simt::machine.block)
#define gridDim (::simt::machine.grid)

inline void __syncthreads() { simt::machine.barrier(); }
inline void __syncwarp() { simt::machine.meet(simt::Together::sync, 0); }
template <class T>
T __shfl_sync(unsigned, T x, int from) {
  T got;
  std::memcpy(&got, simt::machine.meet(simt::Together::shuffle, x).brought[from].data(), sizeof(T));
  return got;
}
template <class T>
T __shfl_xor_sync(unsigned, T x, int bits) {
  const unsigned from = simt::machine.lane() ^ static_cast<unsigned>(bits);
  T got;
  std::memcpy(&got, simt::machine.meet(simt::Together::shuffle, x).brought[from].data(), sizeof(T));
  return got;
}

namespace trainlaunch::gpu {

inline unsigned char* shared_memory() {
  auto p = reinterpret_cast<uintptr_t>(simt::machine.shared.data());
  return reinterpret_cast<unsigned char*>((p + 15) & ~uintptr_t{15});
}

// In a stream's order where there is one, else at once.
void in_order(void* stream, std::function<void()> work);

template <class... Parameters, class... Arguments>
void launch(void* stream, dim3 grid, unsigned threads, size_t shared, void (*kernel)(Parameters...),
            Arguments... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535 ||
      threads == 0 || threads > 1024 || shared > (227 << 10))
    simt::wrong("a launch that no GPU accepts");
  in_order(stream,
           [=] { simt::machine.run(grid, threads, shared, [&] { kernel(arguments...); }); });
}
inline void copy_bytes(void* stream, void* to, const void* from, size_t bytes) {
  if (bytes > 0) in_order(stream, [=] { std::memmove(to, from, bytes); });
}
inline void zero_bytes(void* stream, void* to, size_t bytes) {
  if (bytes > 0) in_order(stream, [=] { std::memset(to, 0, bytes); });
}

inline void copy_async(void* shared, const void* global) {
  if (reinterpret_cast<uintptr_t>(shared) % 16 || reinterpret_cast<uintptr_t>(global) % 16)
    simt::wrong("a misaligned asynchronous copy");
  if (simt::order == simt::Order::falling)
    std::memcpy(shared, global, 16);
  else
    simt::machine.running->copies.push_back({shared, global});
}
inline void copy_async_commit() {
  simt::Fiber& f = *simt::machine.running;
  f.committed.push_back(std::move(f.copies));
  f.copies.clear();
}
template <int newer>
void copy_async_wait() {
  auto& groups = simt::machine.running->committed;
  while (groups.size() > newer) {
    for (const simt::CopyAsync& c : groups.front()) std::memcpy(c.to, c.from, 16);
    groups.erase(groups.begin());
  }
}

// Element (row, column) of the j-th matrix of a load_matrices.
inline uint16_t matrix_element(const simt::Meeting& m, int j, int row, int column) {
  const uint16_t* p;
  std::memcpy(&p, m.brought[j * 8 + row].data(), sizeof(p));
  return p[column];
}
inline const uint16_t* aligned_row(const void* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16) simt::wrong("a misaligned row of a matrix");
  return static_cast<const uint16_t*>(row);
}
inline void load_matrices(uint32_t (&r)[4], const void* row) {
  const simt::Meeting& m = simt::machine.meet(simt::Together::matrices, aligned_row(row));
  const int g = simt::machine.lane() / 4, t = simt::machine.lane() % 4;
  for (int j = 0; j < 4; ++j)
    r[j] = matrix_element(m, j, g, 2 * t) | uint32_t{matrix_element(m, j, g, 2 * t + 1)} << 16;
}
inline void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  const simt::Meeting& m = simt::machine.meet(simt::Together::matrices, aligned_row(row));
  const int g = simt::machine.lane() / 4, t = simt::machine.lane() % 4;
  for (int j = 0; j < 4; ++j)
    r[j] = matrix_element(m, j, 2 * t, g) | uint32_t{matrix_element(m, j, 2 * t + 1, g)} << 16;
}

inline float bits_as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
inline uint32_t float_as_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float half_as_float(uint32_t pair, int half) {
  return bits_as_float(half ? pair & 0xffff0000u : pair << 16);
}

inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Fragments {
    uint32_t a[4], b[2];
  };
  const simt::Meeting& m =
      simt::machine.meet(simt::Together::product, Fragments{{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const auto fragments = [&](int lane) {
    Fragments f;
    std::memcpy(&f, m.brought[lane].data(), sizeof(f));
    return f;
  };
  const int g = simt::machine.lane() / 4, t = simt::machine.lane() % 4;
  for (int pair = 0; pair < 4; ++pair) {  // columns of a and rows of b: 2 pair.., 8 + 2 pair..
    const Fragments row = fragments(g * 4 + pair);
    for (int column = 0; column < 2; ++column) {
      const Fragments b = fragments((2 * t + column) * 4 + pair);
      for (int half = 0; half < 2; ++half) {
        c[column] += half_as_float(row.a[0], half) * half_as_float(b.b[0], half) +
                     half_as_float(row.a[2], half) * half_as_float(b.b[1], half);
        c[2 + column] += half_as_float(row.a[1], half) * half_as_float(b.b[0], half) +
                         half_as_float(row.a[3], half) * half_as_float(b.b[1], half);
      }
    }
  }
}

inline uint32_t round_bf16(float x) {
  const uint32_t bits = float_as_bits(x);
  if (x != x) return 0x7fff;  // as cvt.rn.bf16x2 has it
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
inline uint32_t pack_bf16(float low, float high) {
  return round_bf16(low) | round_bf16(high) << 16;
}
inline float fast_exp2(float x) { return std::exp2(x); }

}  // namespace trainlaunch::gpu
