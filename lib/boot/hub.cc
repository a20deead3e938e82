#include "boot/hub.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "boot/conn.h"
#include "boot/ledger.h"
#include "boot/net.h"

namespace trainlaunch {
namespace {

constexpr Seconds handshake_limit{10};
// A loop that comes back this late was itself stopped (scontrol suspend): nobody else is to blame.
constexpr Seconds asleep{4};

// One connection. Until the proof is right it is a stranger, and gets no buffer beyond the
// handshake.
struct Peer {
  enum class Stage { hello, proof, member };

  explicit Peer(Fd fd)
      : conn(std::move(fd), handshake::hello_bytes), since(Clock::now()), heard(since) {}

  Conn conn;
  Stage stage = Stage::hello;
  std::optional<handshake::Hub> greeting;
  int rank = -1;
  Clock::time_point since, heard;
  bool ready = true;  // poll(2) said that there is something to read or room to write
  bool gone = false;
};

class HubThread final : public Hub {
 public:
  HubThread(const Options& o, Fd listener, Fd wake, int port)
      : options_(o),
        ledger_(o.world, o.pace),
        listener_(std::move(listener)),
        wake_(std::move(wake)),
        port_(port),
        members_(static_cast<size_t>(o.world.size)) {
    // Signals are the supervisor's main thread's.
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    thread_ = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
  }

  ~HubThread() override {
    stop_ = true;
    wake();
    thread_.join();
  }

  int port() const override { return port_; }

  void adopt(Fd socket) override {
    {
      std::lock_guard lock(mutex_);
      adopted_.push_back(std::move(socket));
    }
    wake();
  }

  void drain(Deadline deadline) override {
    std::unique_lock lock(mutex_);
    drained_.wait_until(lock, deadline.at, [this] { return empty_; });
  }

 private:
  void wake() {
    const uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);
  }

  void run() {
    last_ = last_ping_ = Clock::now();
    while (!stop_) {
      wait();
      const auto now = Clock::now();
      if (now - last_ > asleep)
        for (Peer& p : peers_) p.heard = p.since = now;
      last_ = now;
      take_adopted();
      accept_new();
      for (Peer& p : peers_)
        if (std::exchange(p.ready, false)) serve(p, now);
      judge_silence(now);
      ledger_.expire(now);
      deliver(now);
      peers_.remove_if([](const Peer& p) { return p.gone; });
      if (ledger_.finished() && peers_.empty()) {
        std::lock_guard lock(mutex_);
        empty_ = true;
        drained_.notify_all();
      }
    }
  }

  void wait() {
    std::vector<pollfd> fds{{wake_.get(), POLLIN, 0}};
    if (listener_) fds.push_back({std::exchange(full_, false) ? -1 : listener_.get(), POLLIN, 0});
    for (const Peer& p : peers_) fds.push_back({p.conn.fd(), p.conn.events(), 0});
    const auto soon =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(options_.pace.ping / 2);
    ::poll(fds.data(), fds.size(), Deadline{std::min(soon, ledger_.due())}.poll_ms());
    uint64_t count;
    if (fds[0].revents) (void)!::read(wake_.get(), &count, sizeof count);
    size_t i = listener_ ? 2 : 1;
    for (Peer& p : peers_) p.ready = fds[i++].revents != 0;
  }

  void take_adopted() {
    std::lock_guard lock(mutex_);
    for (Fd& fd : adopted_) peers_.emplace_back(std::move(fd));
    adopted_.clear();
  }

  void accept_new() {
    if (!listener_) return;
    for (;;) {
      Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd) {
        full_ = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        return;
      }
      set_stream_options(fd.get(), options_.pace.silence);
      drop_oldest_stranger();
      peers_.emplace_back(std::move(fd));
    }
  }

  // Strangers cannot crowd out ranks: beyond a bound the one that has dallied longest goes.
  void drop_oldest_stranger() {
    const auto stranger = [](const Peer& p) { return p.stage != Peer::Stage::member; };
    const auto n = std::count_if(peers_.begin(), peers_.end(), stranger);
    if (n < options_.world.size + 16) return;
    peers_.erase(std::find_if(peers_.begin(), peers_.end(), stranger));
  }

  void serve(Peer& p, Clock::time_point now) {
    auto open = p.conn.fill();
    Status ok = p.stage == Peer::Stage::member ? Status() : greet(p);
    while (ok && p.stage == Peer::Stage::member) {
      auto m = p.conn.next();
      if (!m) {
        ok = forward(m);
      } else if (!*m) {
        break;
      } else {
        p.heard = now;
        ledger_.handle(p.rank, std::move(**m), now);
      }
    }
    if (ok && open && *open) return;
    close(p, ok ? "is gone" : "broke the protocol: " + ok.error().what, now);
  }

  Status greet(Peer& p) {
    if (p.stage == Peer::Stage::hello) {
      const auto hello = p.conn.take(handshake::hello_bytes);
      if (!hello) return {};
      auto greeting = handshake::Hub::begin(options_.secret, *hello);
      if (!greeting) return forward(greeting);
      p.greeting = std::move(*greeting);
      p.conn.limit(handshake::proof_bytes);
      p.conn.send_raw(p.greeting->challenge());
      p.stage = Peer::Stage::proof;
    }
    const auto proof = p.conn.take(handshake::proof_bytes);
    if (!proof) return {};
    if (Status s = p.greeting->accept(*proof); !s) return s;
    const Identity who = p.greeting->claim();
    if (who.rank >= static_cast<uint32_t>(options_.world.size) ||
        who.generation != static_cast<uint32_t>(options_.world.generation))
      return fail("control channel: no such rank in this generation");
    if (ledger_.has(static_cast<int>(who.rank)))
      return fail("control channel: this rank has joined before");
    p.rank = static_cast<int>(who.rank);
    p.stage = Peer::Stage::member;
    p.conn.seal(p.greeting->keys().to_rank, p.greeting->keys().to_hub, max_body(1));
    p.greeting.reset();
    members_[p.rank] = &p;
    ledger_.joined(p.rank);
    p.conn.send(Message{});  // welcome: the rank waits for a first frame that verifies
    return {};
  }

  void close(Peer& p, const std::string& how, Clock::time_point now) {
    p.gone = true;
    if (p.stage != Peer::Stage::member) return;
    members_[p.rank] = nullptr;
    ledger_.lost(p.rank, how, now);
  }

  void judge_silence(Clock::time_point now) {
    const auto silence = std::chrono::duration_cast<Clock::duration>(options_.pace.silence);
    const auto handshake = std::chrono::duration_cast<Clock::duration>(handshake_limit);
    for (Peer& p : peers_) {
      if (p.gone) continue;
      if (p.stage != Peer::Stage::member) {
        if (now - p.since > handshake) close(p, "", now);
      } else if (now - p.heard > silence) {
        close(p,
              "has given no sign of life for " +
                  std::to_string(static_cast<int>(options_.pace.silence.count())) + " s",
              now);
      }
    }
  }

  void deliver(Clock::time_point now) {
    const auto ping = std::chrono::duration_cast<Clock::duration>(options_.pace.ping);
    if (now - last_ping_ >= ping) {
      last_ping_ = now;
      for (Peer* p : members_)
        if (p) p->conn.send(Message{});
    }
    // Losing one peer while writing gives the others something to be told.
    for (bool again = true; again;) {
      again = false;
      for (const auto& [rank, message] : ledger_.take_outgoing())
        if (members_[rank]) members_[rank]->conn.send(message);
      for (Peer& p : peers_) {
        if (p.gone || p.conn.flush()) continue;
        close(p, "is gone", now);
        again = true;
      }
    }
  }

  const Options options_;
  Ledger ledger_;
  Fd listener_, wake_;
  const int port_;
  std::list<Peer> peers_;
  std::vector<Peer*> members_;  // by rank; null: not joined, or gone
  Clock::time_point last_, last_ping_;

  std::mutex mutex_;
  std::condition_variable drained_;
  std::vector<Fd> adopted_;
  bool empty_ = false;
  bool full_ = false;  // out of descriptors: who waits to be accepted would keep poll(2) awake
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Hub>> Hub::start(const Options& options) {
  Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return fail_errno("eventfd");
  Fd listener;
  int port = 0;
  if (options.listen != Listen::nowhere) {
    auto l = listen_on_free_port(options.listen == Listen::loopback);
    if (!l) return forward(l);
    listener = std::move(l->socket);
    port = l->port;
  }
  return std::make_unique<HubThread>(options, std::move(listener), std::move(wake), port);
}

}  // namespace trainlaunch
