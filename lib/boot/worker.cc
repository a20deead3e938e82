#include "boot/worker.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/caught.h"
#include "boot/conn.h"

namespace trainlaunch {
namespace {

using Json = nlohmann::json;

// How much longer than a call's deadline its answer may take. Silence beyond that means that the
// supervisor is stuck: the hub answers deadlines itself, and lost hubs are found within 10 s.
constexpr Seconds slack{15};

class ChannelControl final : public WorkerControl {
 public:
  ChannelControl(Conn conn, Welcome welcome)
      : conn_(std::move(conn)), welcome_(std::move(welcome)) {}

  ~ChannelControl() override {
    if (!reader_.joinable()) return;
    ::shutdown(conn_.fd(), SHUT_RDWR);
    reader_.join();
    for (int fd : welcome_.local_sockets)
      if (fd >= 0) ::close(fd);
  }

  // Answers arrive in a thread of their own, which takes no signals: those are the trainer's.
  void listen() {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    reader_ = std::thread([this] {
      Status read = caught([this]() -> Status {
        read_answers();
        return {};
      });
      if (!read) give_up(std::move(read.error().what));
    });
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
  }

  const World& world() const override { return welcome_.world; }
  const std::vector<int>& local_sockets() const override { return welcome_.local_sockets; }

  Status put(std::string_view key, std::string_view value) override {
    auto answer = ask(Message::Kind::put, key, {std::string(value)}, Deadline::in(slack));
    if (!answer) return forward(answer);
    return {};
  }

  Result<std::string> get(std::string_view key, Deadline deadline) override {
    auto answer = ask(Message::Kind::get, key, {}, deadline);
    if (!answer) return forward(answer);
    if (answer->size() != 1) return fail("control channel: an answer of the wrong size");
    return std::move(answer->front());
  }

  Result<std::vector<std::string>> gather(std::string_view name, std::string_view mine,
                                          Deadline deadline) override {
    auto answer = ask(Message::Kind::gather, name, {std::string(mine)}, deadline);
    if (!answer) return forward(answer);
    if (answer->size() != static_cast<size_t>(world().size))
      return fail("control channel: an answer of the wrong size");
    return answer;
  }

  void progress(uint64_t step, std::string_view phase) noexcept override {
    try {
      Message m;
      m.kind = Message::Kind::progress;
      m.number = static_cast<int64_t>(step);
      m.name = phase.substr(0, Message::max_name);
      (void)write(m);
    } catch (...) {
      // Out of memory: progress is a courtesy, training goes on.
    }
  }

  bool failed(std::string_view why) noexcept override {
    try {
      Message m;
      m.kind = Message::Kind::failed;
      m.name = why.substr(0, longest_reason);
      return write(m).has_value();
    } catch (...) {
      return false;
    }
  }

 private:
  using Answer = Result<std::vector<std::string>>;
  static constexpr size_t longest_reason = 1000;  // a line, not a log

  Answer ask(Message::Kind kind, std::string_view name, std::vector<std::string> values,
             Deadline deadline) {
    if (name.size() > Message::max_name)
      return fail("a name on the control channel is longer than 256 bytes");
    for (const std::string& v : values)
      if (v.size() > max_value)
        return fail("the value of '" + std::string(name) + "' is longer than 1 MiB");
    Message m;
    m.kind = kind;
    m.generation = static_cast<uint32_t>(world().generation);
    m.name = name;
    m.values = std::move(values);
    m.number = deadline.poll_ms();

    std::unique_lock lock(mutex_);
    if (broken_) return tl::unexpected<Error>(*broken_);
    const uint64_t id = m.id = ++last_id_;
    std::optional<Answer>& slot = waiting_[id];
    lock.unlock();
    const Status sent = write(m);
    lock.lock();
    const auto answered = [&] { return slot.has_value() || broken_.has_value(); };
    bool in_time = true;
    if (!sent) {
      slot = fail(sent.error().what);
    } else if (deadline.at == Clock::time_point::max()) {
      arrived_.wait(lock, answered);
    } else {
      const auto grace = std::chrono::duration_cast<Clock::duration>(slack);
      in_time = arrived_.wait_until(lock, deadline.at + grace, answered);
    }
    Answer answer = slot      ? std::move(*slot)
                    : in_time ? Answer(tl::unexpected<Error>(*broken_))
                              : Answer(fail("'" + std::string(name) +
                                            "': the supervisor of this rank does not answer"));
    waiting_.erase(id);
    return answer;
  }

  // The socket is non-blocking: what it does not take at once is waited for here. The supervisor
  // always reads.
  Status write(const Message& m) {
    std::lock_guard lock(write_mutex_);
    conn_.send(m);
    const Deadline deadline = Deadline::in(slack);
    for (;;) {
      if (Status s = conn_.flush(); !s) return s;
      if (conn_.flushed()) return {};
      pollfd p{conn_.fd(), POLLOUT, 0};
      if (::poll(&p, 1, deadline.poll_ms()) == 0)
        return fail("the supervisor of this rank does not read");
    }
  }

  void read_answers() {
    for (;;) {
      pollfd p{conn_.fd(), POLLIN, 0};
      ::poll(&p, 1, -1);
      auto open = conn_.fill();
      for (;;) {
        auto m = conn_.next();
        if (!m) return give_up(m.error().what);
        if (!*m) break;
        deliver(std::move(**m));
      }
      if (!open) return give_up(open.error().what);
      if (!*open) return give_up("the supervisor of this rank is gone");
    }
  }

  void deliver(Message m) {
    if (m.kind == Message::Kind::failure) return give_up(m.name);
    std::lock_guard lock(mutex_);
    const auto it = waiting_.find(m.id);
    if (it == waiting_.end()) return;
    if (m.kind == Message::Kind::reply)
      it->second = std::move(m.values);
    else
      it->second = fail(m.name);
    arrived_.notify_all();
  }

  void give_up(std::string why) {
    std::lock_guard lock(mutex_);
    if (!broken_) broken_ = Error{std::move(why)};
    arrived_.notify_all();
  }

  // The reader thread alone takes input from conn_, writers alone queue output, under write_mutex_.
  Conn conn_;
  const Welcome welcome_;
  std::mutex write_mutex_, mutex_;
  std::condition_variable arrived_;
  std::map<uint64_t, std::optional<Answer>> waiting_;
  uint64_t last_id_ = 0;
  std::optional<Error> broken_;
  std::thread reader_;
};

void close_on_exec(int fd) { fcntl(fd, F_SETFD, FD_CLOEXEC); }

}  // namespace

Message welcome(const World& w, const std::vector<int>& local_sockets) {
  Message m;
  m.kind = Message::Kind::welcome;
  m.generation = static_cast<uint32_t>(w.generation);
  m.values = {Json{{"rank", w.rank},
                   {"size", w.size},
                   {"local_rank", w.local_rank},
                   {"local_size", w.local_size},
                   {"node", w.node},
                   {"nodes", w.nodes},
                   {"node_of", w.node_of},
                   {"generation", w.generation},
                   {"sockets", local_sockets}}
                  .dump()};
  return m;
}

Result<Welcome> read_welcome(const Message& m) {
  try {
    if (m.kind != Message::Kind::welcome) return fail("control channel: no welcome");
    const Json j = Json::parse(m.values.at(0));
    Welcome out;
    World& w = out.world;
    j.at("rank").get_to(w.rank);
    j.at("size").get_to(w.size);
    j.at("local_rank").get_to(w.local_rank);
    j.at("local_size").get_to(w.local_size);
    j.at("node").get_to(w.node);
    j.at("nodes").get_to(w.nodes);
    j.at("node_of").get_to(w.node_of);
    j.at("generation").get_to(w.generation);
    j.at("sockets").get_to(out.local_sockets);
    return out;
  } catch (const std::exception& e) {
    return fail(std::string("control channel: a malformed welcome: ") + e.what());
  }
}

bool is_worker() { return std::getenv(control_variable) != nullptr; }

Result<std::unique_ptr<WorkerControl>> make_worker_control(int socket) {
  close_on_exec(socket);
  Conn conn(Fd(socket), max_body(1));
  const Deadline deadline = Deadline::in(slack);
  for (;;) {
    auto m = conn.next();
    if (!m) return forward(m);
    if (*m) {
      auto w = read_welcome(**m);
      if (!w) return forward(w);
      for (int fd : w->local_sockets)
        if (fd >= 0) close_on_exec(fd);
      conn.limit(max_body(static_cast<size_t>(w->world.size)));
      auto control = std::make_unique<ChannelControl>(std::move(conn), std::move(*w));
      control->listen();
      return control;
    }
    pollfd p{conn.fd(), POLLIN, 0};
    if (::poll(&p, 1, deadline.poll_ms()) == 0)
      return fail("control channel: the supervisor does not greet this worker");
    auto open = conn.fill();
    if (!open) return forward(open);
    if (!*open) return fail("control channel: the supervisor is gone");
  }
}

Result<std::unique_ptr<WorkerControl>> make_worker_control() {
  const char* text = std::getenv(control_variable);
  if (!text) return make_single_worker_control();
  int fd = -1;
  const std::string_view number(text);
  const auto r = std::from_chars(number.data(), number.data() + number.size(), fd);
  if (r.ec != std::errc() || r.ptr != number.data() + number.size() || fcntl(fd, F_GETFD) < 0)
    return fail(
        std::string(control_variable) + "=" + text +
        " names no open descriptor; it is set by train-launch for its worker only, unset it");
  unsetenv(control_variable);
  return make_worker_control(fd);
}

}  // namespace trainlaunch
