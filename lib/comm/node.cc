#include "comm/node.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <type_traits>

#include "base/processors.h"

namespace trainlaunch {

// A counter in shared memory that can be slept on. Arrivals count by 2; bit 0 says that the node
// has failed, so that failing changes the value that sleepers compare.
struct alignas(64) Node::Word {
  std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> sleepers{0};

  static bool reached(uint32_t value, uint32_t target) {
    return static_cast<int32_t>((value & ~1u) - 2 * target) >= 0;
  }
};

// What one rank says of itself.
struct alignas(64) Node::Line {
  std::atomic<uint64_t> nonce{0};
  ProcessorSet processors;                           // written before the nonce
  std::atomic<uint32_t> met{0}, left{0};             // its own counts
  std::array<std::atomic<uint64_t>, 2> signature{};  // of the call of the last two meetings
};

struct Node::Common {
  Word met, left;
  alignas(64) std::atomic<uint32_t> failed_by{0};  // local rank + 1
  std::atomic<uint32_t> text_ready{0};
  std::array<char, 480> text{};
};

namespace {

// How long a sleep lasts before looking whether the others still live.
constexpr std::chrono::milliseconds nap{200};
// What sleeping and being woken costs at most, on virtual machines.
constexpr std::chrono::microseconds wake_up{50};

static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::is_trivially_copyable_v<ProcessorSet>);  // it lies in shared memory

void sleep_on(std::atomic<uint32_t>& word, uint32_t value, Clock::duration time) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  timespec t{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &t, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Node::Node(const World& world, int first, int count, int me)
    : world_(world),
      first_(first),
      count_(count),
      me_(me),
      generation_(static_cast<uint32_t>(world.generation)) {}

Node::~Node() = default;

std::unique_ptr<Node> Node::alone(const World& world) {
  std::unique_ptr<Node> node(new Node(world, world.rank, 1, 0));
  node->host_ = make_host_device();
  node->own_stage_ = std::make_unique<std::byte[]>(2 * stage_bytes);
  return node;
}

Node::Line* Node::lines() const { return reinterpret_cast<Line*>(common_ + 1); }

std::byte* Node::stage(int half) const {
  if (own_stage_) return own_stage_.get() + half * stage_bytes;
  return reinterpret_cast<std::byte*>(lines() + count_) + half * stage_bytes;
}

Result<std::unique_ptr<Node>> Node::join(const World& world, const std::vector<int>& sockets,
                                         uint64_t nonce, Deadline deadline) {
  std::unique_ptr<Node> node(
      new Node(world, world.rank - world.local_rank, world.local_size, world.local_rank));
  for (int s : sockets) {
    node->sockets_.emplace_back(s < 0 ? -1 : fcntl(s, F_DUPFD_CLOEXEC, 0));
    if (s >= 0 && !node->sockets_.back()) return fail_errno("cannot use a socket of this node");
  }

  const size_t bytes = sizeof(Common) + node->count_ * sizeof(Line) + 2 * stage_bytes;
  const Note note{Note::About::control, world.generation, 0, bytes};
  if (node->me_ == 0) {
    auto memory = Segment::create(bytes);
    if (memory) {
      node->common_ = new (memory->data()) Common;
      for (int i = 0; i < node->count_; ++i) new (node->lines() + i) Line;
    }
    for (int i = 1; i < node->count_; ++i) {
      auto sent =
          send_note(node->sockets_[i].get(), note, memory ? memory->fd().get() : -1, deadline);
      if (!sent) return forward(sent);
    }
    if (!memory) return forward(memory);
    memory->close_fd();
    node->common_memory_ = std::move(*memory);
  } else {
    auto got = receive_note(node->sockets_[0].get(), note, deadline);
    if (!got) return forward(got);
    if (got->note.bytes != bytes || !got->fd) return fail("no memory from the node's first rank");
    auto memory = Segment::attach(got->fd, bytes);
    if (!memory) return forward(memory);
    node->common_memory_ = std::move(*memory);
    node->common_ = std::launder(reinterpret_cast<Common*>(node->common_memory_.data()));
  }
  if (auto exchanged = node->exchange_processes(deadline); !exchanged) return forward(exchanged);

  Line& mine = node->lines()[node->me_];
  mine.processors = allowed_processors();
  mine.nonce.store(nonce, std::memory_order_release);
  return node;
}

// A handle on every other process tells at once when it has died, in whatever namespaces it lives.
Status Node::exchange_processes(Deadline deadline) {
  const Fd self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  const Note note{Note::About::process, world_.generation, 0, 0};
  for (int i = 0; i < count_; ++i) {
    if (i == me_) continue;
    if (auto sent = send_note(sockets_[i].get(), note, self.get(), deadline); !sent) return sent;
  }
  processes_.resize(count_);
  for (int i = 0; i < count_; ++i) {
    if (i == me_) continue;
    auto got = receive_note(sockets_[i].get(), note, deadline);
    if (!got) return forward(got);
    processes_[i] = std::move(got->fd);  // none where the kernel is older than 5.3
  }
  return {};
}

Status Node::verify(std::span<const uint64_t> nonces) {
  ProcessorSet all;
  for (int i = 0; i < count_; ++i) {
    if (lines()[i].nonce.load(std::memory_order_acquire) != nonces[i])
      return fail(describe_rank(world_, first_ + i) + " does not share this memory");
    all |= lines()[i].processors;
  }
  // Spinning helps only while the one that is waited for runs at the same time.
  const auto cpus = static_cast<int>(all.count());
  if (cpus < count_) return {};
  spin_idle_ = wake_up;
  spin_busy_ = cpus < 2 * count_ ? wake_up / 10 : wake_up;
  return {};
}

Result<std::vector<std::byte*>> Node::alloc(std::string_view what, size_t bytes,
                                            Deadline deadline) {
  const auto failed = [&](int i, const std::string& why) {
    return fail("memory for " + std::string(what) + ": " + describe_rank(world_, first_ + i) +
                ": " + why);
  };
  if (count_ == 1) {
    auto block = host_->allocate(bytes);
    if (!block) return failed(me_, block.error().what);
    blocks_.push_back(std::move(*block));
    return std::vector<std::byte*>{static_cast<std::byte*>(blocks_.back()->data())};
  }

  auto own = Segment::create(bytes);
  Note note{Note::About::memory, world_.generation, ++allocations_, 0};
  if (own) note.bytes = bytes;
  for (int i = 0; i < count_; ++i) {
    if (i == me_) continue;
    auto sent = send_note(sockets_[i].get(), note, own ? own->fd().get() : -1, deadline);
    if (!sent) return failed(i, sent.error().what);
  }
  if (!own) return failed(me_, own.error().what);

  std::vector<std::byte*> places(count_);
  for (int i = 0; i < count_; ++i) {
    if (i == me_) continue;
    auto got = receive_note(sockets_[i].get(), note, deadline);
    if (!got) return failed(i, got.error().what);
    if (!got->fd) return failed(i, "it could not allocate its part");
    if (got->note.bytes != bytes) return failed(i, "it asked for another size");
    auto theirs = Segment::attach(got->fd, bytes);
    if (!theirs) return failed(i, theirs.error().what);
    places[i] = theirs->data();
    segments_.push_back(std::move(*theirs));
  }
  own->close_fd();
  places[me_] = own->data();
  segments_.push_back(std::move(*own));
  return places;
}

Status Node::meet(const Call& call) {
  if (count_ == 1) return {};
  const uint32_t target = ++meetings_;
  const uint64_t signature = call.signature;
  // Two slots, because a rank may be one meeting ahead of one that still compares, never two.
  const size_t slot = target % 2;
  Line& mine = lines()[me_];
  mine.signature[slot].store(signature, std::memory_order_relaxed);
  mine.met.store(target, std::memory_order_release);

  Word& word = common_->met;
  const uint32_t all = target * static_cast<uint32_t>(count_);
  const uint32_t value = word.value.fetch_add(2) + 2;
  if (value & 1) return peer_failed();
  if (Word::reached(value, all)) {
    if (word.sleepers.load() != 0) wake_all(word.value);
  } else if (auto waited = wait(word, &Line::met, target, call.deadline); !waited) {
    return waited;
  }
  for (int i = 0; i < count_; ++i) {
    if (lines()[i].signature[slot].load(std::memory_order_relaxed) != signature)
      return fail(describe_rank(world_, first_ + i) +
                  " made another call; all ranks must make the same calls in the same order");
  }
  return {};
}

void Node::leave() {
  if (count_ == 1) return;
  const uint32_t target = ++departures_;
  lines()[me_].left.store(target, std::memory_order_release);
  Word& word = common_->left;
  const uint32_t value = word.value.fetch_add(2) + 2;
  if (Word::reached(value, target * static_cast<uint32_t>(count_)) && word.sleepers.load() != 0)
    wake_all(word.value);
}

Status Node::wait_left(Ticket ticket, Deadline deadline) {
  if (count_ == 1) return {};
  return wait(common_->left, &Line::left, static_cast<uint32_t>(ticket), deadline);
}

// It gives way to the one that is waited for, should that be on the same processor after all.
bool Node::spin(const Word& word, uint32_t all) const {
  if (spin_idle_.count() == 0) return false;
  const Clock::time_point start = Clock::now();
  Clock::duration patience;
  do {
    for (int i = 0; i < 32; ++i) {
      if (Word::reached(word.value.load(std::memory_order_acquire), all)) return true;
      relax();
    }
    sched_yield();
    patience = idle_.load(std::memory_order_relaxed) ? spin_idle_ : spin_busy_;
  } while (Clock::now() - start < patience);
  return false;
}

Status Node::wait(Word& word, std::atomic<uint32_t> Line::*progress, uint32_t target,
                  Deadline deadline) {
  const uint32_t all = target * static_cast<uint32_t>(count_);
  if (spin(word, all)) return {};
  for (Clock::time_point looked = Clock::now();;) {
    uint32_t value = word.value.load(std::memory_order_acquire);
    if (value & 1) return peer_failed();
    if (Word::reached(value, all)) return {};
    const Stop stop = stop_.load();
    if (stop == Stop::aborted) return fail("aborted");
    const Clock::time_point now = Clock::now();
    if (stop == Stop::expired || now >= deadline.at)
      return fail("timed out waiting for " + late(progress, target));
    if (now - looked >= nap) {
      if (auto alive = check_dead(progress, target); !alive) return alive;
      looked = now;
    }
    word.sleepers.fetch_add(1);
    value = word.value.load();
    if (!Word::reached(value, all) && !(value & 1) && stop_.load() == Stop::none)
      sleep_on(word.value, value, std::min<Clock::duration>(deadline.at - now, nap));
    word.sleepers.fetch_sub(1);
  }
}

Status Node::check_dead(std::atomic<uint32_t> Line::*progress, uint32_t target) const {
  for (int i = 0; i < count_; ++i) {
    if (!processes_[i]) continue;
    pollfd p{processes_[i].get(), POLLIN, 0};
    if (poll(&p, 1, 0) != 1) continue;
    // It may have done its part before it ended.
    const uint32_t there = (lines()[i].*progress).load(std::memory_order_acquire);
    if (static_cast<int32_t>(there - target) < 0)
      return fail(describe_rank(world_, first_ + i) + " has died");
  }
  return {};
}

std::string Node::late(std::atomic<uint32_t> Line::*progress, uint32_t target) const {
  std::string text;
  for (int i = 0; i < count_; ++i) {
    const uint32_t there = (lines()[i].*progress).load(std::memory_order_acquire);
    if (static_cast<int32_t>(there - target) >= 0) continue;
    if (!text.empty()) text += ", ";
    text += describe_rank(world_, first_ + i);
  }
  return text;
}

tl::unexpected<Error> Node::peer_failed() const {
  const uint32_t by = common_->failed_by.load(std::memory_order_acquire);
  std::string text = by == 0 || by > static_cast<uint32_t>(count_)
                         ? "another rank of this node"
                         : describe_rank(world_, first_ + static_cast<int>(by) - 1);
  text += " failed";
  if (common_->text_ready.load(std::memory_order_acquire)) {
    const char* theirs = common_->text.data();
    text += ": " + std::string(theirs, strnlen(theirs, common_->text.size()));
  }
  return fail(text);
}

void Node::stop(Stop why) noexcept {
  Stop none = Stop::none;
  stop_.compare_exchange_strong(none, why);
  if (!common_) return;
  wake_all(common_->met.value);
  wake_all(common_->left.value);
}

void Node::abort(std::string_view text) noexcept {
  if (!common_) return;
  uint32_t nobody = 0;
  if (common_->failed_by.compare_exchange_strong(nobody, static_cast<uint32_t>(me_) + 1)) {
    const size_t n = std::min(text.size(), common_->text.size() - 1);
    std::memcpy(common_->text.data(), text.data(), n);
    common_->text_ready.store(1, std::memory_order_release);
  }
  for (Word* word : {&common_->met, &common_->left}) {
    word->value.fetch_or(1);
    wake_all(word->value);
  }
}

}  // namespace trainlaunch
