#include "comm/nccl/nccl_comm.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "comm/nccl/nccl_library.h"

namespace trainlaunch {

namespace {

// How long an orderly end may take.
constexpr Seconds farewell{5};
// Numbers of all_sum, and bytes of broadcast, that pass the device at a time.
constexpr int64_t most_values = 1024, most_bytes = int64_t{1} << 20;

Result<ncclDataType_t> nccl_type(DType t) {
  switch (t) {
    case DType::f32:
      return ncclFloat32;
    case DType::f64:
      return ncclFloat64;
    case DType::bf16:
      return ncclBfloat16;
    case DType::i32:
      return ncclInt32;
    case DType::u8:
      return ncclUint8;
  }
  return fail("NCCL does not carry this type");
}

// An id as text, for the control channel.
std::string hex(const ncclUniqueId& id) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const char c : id.internal) {
    text += digits[static_cast<unsigned char>(c) >> 4];
    text += digits[static_cast<unsigned char>(c) & 15];
  }
  return text;
}
Result<ncclUniqueId> parse_id(const std::string& text) {
  ncclUniqueId id;
  if (text.size() != 2 * sizeof(id.internal)) return fail("rank 0 could not make an NCCL id");
  for (size_t i = 0; i < sizeof(id.internal); ++i)
    id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return id;
}

class NcclComm final : public Comm {
 public:
  NcclComm(const NcclLibrary& nccl, const World& world, const CommOptions& options,
           DeviceParts parts)
      : nccl_(nccl), world_(world), options_(options), parts_(std::move(parts)) {}

  Status connect(Control& control) {
    const Deadline deadline = Deadline::in(options_.timeout);
    auto stream = parts_.device.stream();
    if (!stream) return forward(stream);
    stream_ = std::move(*stream);
    auto stage = take(most_values * static_cast<int64_t>(sizeof(double)) * (size() + 1));
    if (!stage) return forward(stage);
    stage_ = *stage;
    auto bytes = take(most_bytes);
    if (!bytes) return forward(bytes);
    bytes_ = *bytes;

    const std::string key =
        "communicator: nccl id of generation " + std::to_string(world_.generation);
    if (rank() == 0) {
      ncclUniqueId made;
      const ncclResult_t r = nccl_.ncclGetUniqueId(&made);
      // Others wait for it: they are told in any case.
      if (auto ok = control.put(key, r == ncclSuccess ? hex(made) : "none"); !ok) return ok;
      if (r != ncclSuccess) return error("no id", r);
    }
    auto text = control.get(key, deadline);
    if (!text) return forward(text);
    auto id = parse_id(*text);
    if (!id) return forward(id);

    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return run("init", deadline,
               [&] { return nccl_.ncclCommInitRankConfig(&comm_, size(), *id, rank(), &config); });
  }

  ~NcclComm() override {
    if (comm_ && !failed()) {
      const Deadline deadline = Deadline::in(farewell);
      for (const Memory& m : memories_)
        if (m.handle)
          (void)run("deregister", deadline,
                    [&] { return nccl_.ncclCommDeregister(comm_, m.handle); });
      (void)run("finalize", deadline, [&] { return nccl_.ncclCommFinalize(comm_); });
      if (!failed()) {
        nccl_.ncclCommDestroy(comm_);
        comm_ = nullptr;
      }
    }
    end();
    // What NCCL does no more may be followed by work of ours, in memory that is about to go.
    if (stream_) (void)stream_->record().wait(Deadline::in(farewell));
    for (const Memory& m : memories_)
      if (m.from_nccl) nccl_.ncclMemFree(m.p);
  }

  const char* name() const override { return "nccl"; }
  int rank() const override { return world_.rank; }
  int size() const override { return world_.size; }

  // From NCCL where it has any, because it need not copy that to send it.
  Result<View> alloc(std::string_view what, DType t, int64_t count) override {
    Memory memory;
    memory.bytes = std::max<size_t>(static_cast<size_t>(count) * bytes_of(t), 1);
    if (nccl_.ncclMemAlloc(&memory.p, memory.bytes) == ncclSuccess) {
      memory.from_nccl = true;
    } else {
      auto view = take(static_cast<int64_t>(memory.bytes));
      if (!view) return fail("memory for " + std::string(what) + ": " + view.error().what);
      memory.p = view->p;
    }
    memories_.push_back(memory);
    const View view(memory.p, t, {count});
    parts_.math.clear(*stream_, View(memory.p, DType::u8, {static_cast<int64_t>(memory.bytes)}));
    const Deadline deadline = Deadline::in(options_.timeout);
    if (auto ok = arrive(describe("alloc", view), stream_->record(), deadline); !ok)
      return forward(ok);
    if (memory.from_nccl) {
      void*& handle = memories_.back().handle;
      auto ok = run("register", deadline,
                    [&] { return nccl_.ncclCommRegister(comm_, memory.p, memory.bytes, &handle); });
      if (!ok) return forward(ok);
    }
    return view;
  }

  Ticket reduce_scatter(View v, const Owners& owners, DType wire, Event after) override {
    return issue("reduce_scatter", v, owners, after, [&] {
      count(v, owners);
      return sum(v, owners, wire);
    });
  }
  Ticket all_reduce(View v, const Owners& owners, DType wire, Event after) override {
    return issue("all_reduce", v, owners, after, [&]() -> Status {
      count(v, owners);
      count(v, owners);
      if (auto ok = sum(v, owners, wire); !ok) return ok;
      return gather(v, owners);
    });
  }
  Ticket all_gather(View v, const Owners& owners, Event after) override {
    return issue("all_gather", v, owners, after, [&] {
      count(v, owners);
      return gather(v, owners);
    });
  }

  Status wait(Ticket ticket, Deadline deadline) override {
    if (ticket == 0 || ticket > issued_) return fail("wait: no such ticket");
    if (auto ok = healthy(); !ok) return ok;
    auto pending = pending_.extract(ticket);
    if (!pending) return {};
    const Pending& p = pending.mapped();
    deadline.at = std::min(deadline.at, p.deadline.at);
    return arrive(p.what, p.done, deadline);
  }

  // Everyone's values come to everyone, who adds them in rank order.
  Status all_sum(std::span<double> values, Deadline deadline) override {
    for (size_t i = 0; i < values.size(); i += most_values)
      if (auto ok = sum_some(values.subspan(i, std::min<size_t>(most_values, values.size() - i)),
                             deadline);
          !ok)
        return ok;
    return healthy();
  }

  Status broadcast(View v, int root, Deadline deadline) override {
    const int64_t bytes = static_cast<int64_t>(v.bytes());
    auto* host = static_cast<std::byte*>(v.p);
    for (int64_t at = 0; at < bytes; at += most_bytes) {
      const View here(host + at, DType::u8, {std::min(most_bytes, bytes - at)});
      const View there = bytes_.slice(0, here.size());
      if (rank() == root) parts_.device.upload(*stream_, there, here);
      auto ok = run("broadcast", deadline, [&] {
        return nccl_.ncclBroadcast(there.p, there.p, static_cast<size_t>(there.size()), ncclUint8,
                                   root, comm_, native());
      });
      if (!ok) return ok;
      if (rank() != root) parts_.device.download(*stream_, here, there);
      if (ok = arrive("broadcast", stream_->record(), deadline); !ok) return ok;
    }
    return healthy();
  }

  Status barrier(Deadline deadline) override {
    double nothing = 0;
    return all_sum({&nothing, 1}, deadline);
  }

  void abort() noexcept override { give_up({"the communicator was aborted"}); }

  // As in a ring: of a view every rank sends and receives all but one part.
  Moved moved() const override { return {moved_, moved_, 0}; }

 private:
  struct Memory {
    void* p = nullptr;
    size_t bytes = 0;
    void* handle = nullptr;  // registration
    bool from_nccl = false;
  };
  struct Pending {
    std::string what;
    Event done;
    Deadline deadline;
  };

  cudaStream_t native() const { return static_cast<cudaStream_t>(stream_->native()); }

  Result<View> take(int64_t bytes) {
    auto block = parts_.device.allocate(static_cast<size_t>(bytes));
    if (!block) return forward(block);
    blocks_.push_back(std::move(*block));
    return View(blocks_.back()->data(), DType::u8, {bytes});
  }

  // "reduce_scatter 12 (3.1 MB)"
  static std::string describe(const char* what, View v) {
    return std::string(what) + " (" + std::to_string(v.bytes()) + " bytes)";
  }

  Error error_of(const std::string& what, ncclResult_t r) const {
    return {what + ": NCCL: " + nccl_.ncclGetErrorString(r)};
  }
  Status error(const std::string& what, ncclResult_t r) const {
    return tl::unexpected<Error>(error_of(what, r));
  }

  bool failed() const {
    std::lock_guard lock(mutex_);
    return error_.has_value();
  }
  Status healthy() const {
    std::lock_guard lock(mutex_);
    if (error_) return tl::unexpected<Error>(*error_);
    return {};
  }
  // The first error ends the communicator, here and, through NCCL, for its peers.
  Status give_up(Error e) noexcept {
    {
      std::lock_guard lock(mutex_);
      if (!error_) error_ = std::move(e);
    }
    end();
    return healthy();
  }
  // Kernels that wait for a peer return.
  void end() noexcept {
    std::lock_guard lock(mutex_);
    if (comm_) nccl_.ncclCommAbort(comm_);
    comm_ = nullptr;
  }

  // One call of NCCL, and the wait until it is under way: nothing else may be called before that.
  template <class F>
  Status run(const std::string& what, Deadline deadline, const F& call) {
    ncclResult_t state;
    {
      std::lock_guard lock(mutex_);
      if (error_) return tl::unexpected<Error>(*error_);
      state = call();
    }
    if (state != ncclSuccess && state != ncclInProgress) return give_up(error_of(what, state));
    for (int spins = 0;; ++spins) {
      if (auto ok = poll(what, state); !ok) return ok;
      if (state == ncclSuccess) return {};
      if (deadline.over()) return give_up({what + ": timed out"});
      if (spins > 100) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  // What NCCL says about its last calls.
  Status poll(const std::string& what, ncclResult_t& state) {
    ncclResult_t r;
    {
      std::lock_guard lock(mutex_);
      if (error_) return tl::unexpected<Error>(*error_);
      r = nccl_.ncclCommGetAsyncError(comm_, &state);
    }
    if (r != ncclSuccess) return give_up(error_of(what, r));
    if (state != ncclSuccess && state != ncclInProgress) return give_up(error_of(what, state));
    return {};
  }

  // Waits for the device, and looks meanwhile whether a peer has gone.
  Status arrive(const std::string& what, const Event& event, Deadline deadline) {
    for (int spins = 0;; ++spins) {
      auto done = event.done();
      if (!done) return give_up({what + ": " + done.error().what});
      // Work that NCCL gave up is done too, as far as the device knows.
      if (*done || spins % 64 == 0) {
        ncclResult_t state = ncclSuccess;
        if (auto ok = poll(what, state); !ok || *done) return ok;
      }
      if (auto ok = healthy(); !ok) return ok;
      if (deadline.over()) return give_up({what + ": timed out"});
      if (spins > 1000) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  // Sets a collective going. What is wrong with it ends the communicator, and is told by wait().
  template <class F>
  Ticket issue(const char* kind, View v, const Owners& owners, const Event& after, const F& start) {
    const Ticket ticket = ++issued_;
    const std::string what = std::string(kind) + " " + std::to_string(ticket) + describe("", v);
    const auto refuse = [&](const Error& e) { give_up({what + ": " + e.what}); };
    deadline_ = Deadline::in(options_.timeout);
    if (auto ok = check(v, owners); !ok) {
      refuse(ok.error());
    } else {
      const Traced traced(options_.trace, "comm", what);
      stream_->wait(after);
      if (ok = start(); !ok) refuse(ok.error());
    }
    pending_.emplace(ticket, Pending{what, stream_->record(), deadline_});
    return ticket;
  }
  Status check(View v, const Owners& owners) const {
    if (owners.begin.size() != static_cast<size_t>(size()) + 1 || owners.begin.front() != 0 ||
        owners.begin.back() != v.size() ||
        !std::is_sorted(owners.begin.begin(), owners.begin.end()))
      return fail("the owners' parts do not make up the view");
    const auto* p = static_cast<const std::byte*>(v.p);
    for (const Memory& m : memories_) {
      const auto* begin = static_cast<const std::byte*>(m.p);
      if (p >= begin && p + v.bytes() <= begin + m.bytes) return {};
    }
    return fail("the view is not in memory of this communicator");
  }
  // Of one pass of all parts but the own.
  void count(View v, const Owners& owners) {
    moved_ += v.bytes() - static_cast<size_t>(owners.count(rank())) * bytes_of(v.t);
  }

  bool equal_parts(const Owners& owners) const {
    for (int r = 1; r < size(); ++r)
      if (owners.count(r) != owners.count(0)) return false;
    return true;
  }

  // f is called for every rank that owns something, all calls in one group.
  template <class F>
  Status for_owners(const char* what, const Owners& owners, const F& f) {
    return run(what, deadline_, [&] {
      ncclResult_t r = nccl_.ncclGroupStart();
      for (int owner = 0; owner < size(); ++owner)
        if (r == ncclSuccess && owners.count(owner) > 0) r = f(owner);
      const ncclResult_t ended = nccl_.ncclGroupEnd();
      return r == ncclSuccess ? ended : r;
    });
  }

  Status sum(View v, const Owners& owners, DType wire) {
    if (v.t != DType::f32 || (wire != DType::f32 && wire != DType::bf16))
      return fail("only f32 is summed, and sent as f32 or bf16");
    if (wire == DType::bf16 && options_.order == SumOrder::tree)
      return fail("sums in the order of a tree are sent as f32");
    if (wire == DType::bf16 || options_.order == SumOrder::tree)
      return exchange_and_sum(v, owners, wire);
    return reduce(v, owners);
  }

  Status reduce(View v, const Owners& owners) {
    const auto part = [&](int r) { return v.slice(owners.offset(r), owners.count(r)); };
    if (equal_parts(owners)) {
      return run("reduce_scatter", deadline_, [&] {
        return nccl_.ncclReduceScatter(v.p, part(rank()).p, static_cast<size_t>(owners.count(0)),
                                       ncclFloat32, ncclSum, comm_, native());
      });
    }
    return for_owners("reduce", owners, [&](int owner) {
      const View p = part(owner);
      return nccl_.ncclReduce(p.p, p.p, static_cast<size_t>(p.size()), ncclFloat32, ncclSum, owner,
                              comm_, native());
    });
  }

  Status gather(View v, const Owners& owners) {
    auto type = nccl_type(v.t);
    if (!type) return forward(type);
    const auto part = [&](int r) { return v.slice(owners.offset(r), owners.count(r)); };
    if (equal_parts(owners)) {
      return run("all_gather", deadline_, [&] {
        return nccl_.ncclAllGather(part(rank()).p, v.p, static_cast<size_t>(owners.count(0)), *type,
                                   comm_, native());
      });
    }
    return for_owners("broadcast", owners, [&](int owner) {
      const View p = part(owner);
      return nccl_.ncclBroadcast(p.p, p.p, static_cast<size_t>(p.size()), *type, owner, comm_,
                                 native());
    });
  }

  // Every rank sends each owner its numbers; the owner adds them up.
  Status exchange_and_sum(View v, const Owners& owners, DType wire) {
    const int64_t mine = owners.count(rank());
    View sent = v, own = v.slice(owners.offset(rank()), mine);
    if (wire == DType::bf16) {
      auto packed = scratch(sent_, wire, v.size());
      if (!packed) return forward(packed);
      sent = *packed;
      parts_.math.copy(*stream_, v, sent);
    }
    auto received = scratch(received_, wire, mine * size());
    if (!received) return forward(received);
    auto ok = run("exchange", deadline_, [&] {
      const auto type = wire == DType::bf16 ? ncclBfloat16 : ncclFloat32;
      ncclResult_t r = nccl_.ncclGroupStart();
      for (int peer = 0; peer < size() && r == ncclSuccess; ++peer) {
        const View out = sent.slice(owners.offset(peer), owners.count(peer));
        if (peer == rank()) continue;
        if (out.size() > 0)
          r = nccl_.ncclSend(out.p, static_cast<size_t>(out.size()), type, peer, comm_, native());
        if (r == ncclSuccess && mine > 0)
          r = nccl_.ncclRecv(received->slice(peer * mine, mine).p, static_cast<size_t>(mine), type,
                             peer, comm_, native());
      }
      const ncclResult_t ended = nccl_.ncclGroupEnd();
      return r == ncclSuccess ? ended : r;
    });
    if (!ok || mine == 0) return ok;

    parts_.math.copy(*stream_, sent.slice(owners.offset(rank()), mine),
                     received->slice(rank() * mine, mine));
    auto wide = wire == DType::bf16 ? scratch(wide_, DType::f32, mine * size()) : received;
    if (!wide) return forward(wide);
    if (wire == DType::bf16) parts_.math.copy(*stream_, *received, *wide);
    std::vector<View> numbers;
    for (int r = 0; r < size(); ++r) numbers.push_back(wide->slice(r * mine, mine));
    if (options_.order == SumOrder::tree)
      sum_tree(own, numbers);
    else
      sum_ranks(own, numbers);
    return {};
  }
  // Neighbours, then neighbouring pairs, in place; the last sum is the result.
  void sum_tree(View own, const std::vector<View>& numbers) {
    for (size_t step = 1; step < numbers.size(); step *= 2) {
      const bool last = 2 * step == numbers.size();
      for (size_t i = 0; i < numbers.size(); i += 2 * step) {
        const View pair[] = {numbers[i], numbers[i + step]};
        parts_.math.sum(*stream_, last ? own : numbers[i], pair);
      }
    }
  }
  // In lots, for kernels take no more at a time.
  void sum_ranks(View own, const std::vector<View>& numbers) {
    constexpr size_t lot = 32;
    const std::span<const View> all(numbers);
    parts_.math.sum(*stream_, own, all.first(std::min(lot, all.size())));
    for (size_t i = lot; i < all.size(); i += lot - 1) {
      std::vector<View> some{own};
      for (const View& v : all.subspan(i, std::min(lot - 1, all.size() - i))) some.push_back(v);
      parts_.math.sum(*stream_, own, some);
    }
  }

  // Memory that grows with the largest use. What is on its way may use the old, which stays.
  Result<View> scratch(View& whole, DType t, int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(bytes_of(t));
    if (whole.size() < bytes || !whole) {
      auto more = take(std::max<int64_t>(bytes, 1));
      if (!more) return forward(more);
      whole = *more;
    }
    return View(whole.p, t, {count});
  }

  Status sum_some(std::span<double> values, Deadline deadline) {
    const auto n = static_cast<int64_t>(values.size());
    const View all(stage_.p, DType::f64, {n * size()});
    const View mine(stage_.slice(most_values * static_cast<int64_t>(sizeof(double)) * size(), 0).p,
                    DType::f64, {n});
    parts_.device.upload(*stream_, mine, View(values.data(), DType::f64, {n}));
    auto ok = run("all_sum", deadline, [&] {
      return nccl_.ncclAllGather(mine.p, all.p, values.size(), ncclFloat64, comm_, native());
    });
    if (!ok) return ok;
    std::vector<double> host(static_cast<size_t>(n * size()));
    parts_.device.download(*stream_, View(host.data(), DType::f64, {n * size()}), all);
    if (ok = arrive("all_sum", stream_->record(), deadline); !ok) return ok;
    for (int64_t i = 0; i < n; ++i) {
      double sum = host[static_cast<size_t>(i)];
      for (int r = 1; r < size(); ++r) sum += host[static_cast<size_t>(r * n + i)];
      values[static_cast<size_t>(i)] = sum;
    }
    return {};
  }

  const NcclLibrary nccl_;
  const World world_;
  const CommOptions options_;
  const DeviceParts parts_;
  mutable std::mutex mutex_;  // around calls of NCCL, which abort() may interrupt
  std::optional<Error> error_;
  ncclComm_t comm_ = nullptr;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Memory> memories_;
  View stage_, bytes_;           // u8: of all_sum, of broadcast
  View sent_, received_, wide_;  // u8: scratch of exchange_and_sum
  Ticket issued_ = 0;
  std::map<Ticket, Pending> pending_;  // not waited for yet
  Deadline deadline_;                  // of the collective that is being issued
  std::atomic<uint64_t> moved_{0};
  std::unique_ptr<Stream> stream_;
};

}  // namespace

Result<std::unique_ptr<Comm>> make_nccl_comm(const NcclLibrary& nccl, Control& control,
                                             const CommOptions& options, DeviceParts parts) {
  const World& world = control.world();
  if (options.order == SumOrder::tree && !std::has_single_bit(static_cast<unsigned>(world.size)))
    return fail(std::to_string(world.size) + " ranks are no power of two: their sums make no tree");
  auto comm = std::make_unique<NcclComm>(nccl, world, options, std::move(parts));
  if (auto ok = comm->connect(control); !ok) return forward(ok);
  return comm;
}

}  // namespace trainlaunch
