#include "boot/link.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "boot/net.h"

namespace trainlaunch {
namespace {

constexpr Seconds one_address{2};    // until an address has shown that it is the hub's
constexpr Seconds answer_slack{15};  // the hub watches deadlines; this is for a hub that does not
constexpr Seconds asleep{4};         // longer between two pumps: this process was stopped

Clock::duration ticks(Seconds s) { return std::chrono::duration_cast<Clock::duration>(s); }

Deadline sooner(Deadline a, Deadline b) { return a.at < b.at ? a : b; }

void wait(const Conn& conn, Deadline deadline) {
  pollfd p{conn.fd(), conn.events(), 0};
  ::poll(&p, 1, deadline.poll_ms());
}

// Until take() has something. What the other side sent before it hung up still counts.
template <class Take>
auto receive(Conn& conn, Deadline deadline, Take take) -> decltype(take()) {
  bool open = true;
  for (;;) {
    if (Status s = conn.flush(); !s) return forward(s);
    if (auto got = take(); !got || *got) return got;
    if (!open) return fail("it hung up; it may belong to another job step or generation");
    if (deadline.over()) return fail("no answer");
    wait(conn, deadline);
    auto more = conn.fill();
    if (!more) return forward(more);
    open = *more;
  }
}

}  // namespace

Link::Link(Conn conn, const Options& options)
    : conn_(std::move(conn)),
      pace_(options.pace),
      generation_(options.who.generation),
      heard_(Clock::now()),
      pumped_(heard_) {}

Result<Link> Link::join(Fd socket, const Options& options, Deadline challenged, Deadline deadline) {
  auto me = handshake::Rank::begin(options.secret, options.who);
  if (!me) return forward(me);
  Conn conn(std::move(socket), handshake::challenge_bytes);
  conn.send_raw(me->hello());
  auto challenge = receive(conn, challenged, [&]() -> Result<std::optional<std::string>> {
    return conn.take(handshake::challenge_bytes);
  });
  if (!challenge) return forward(challenge);
  auto proof = me->answer(**challenge);
  if (!proof) return forward(proof);
  conn.send_raw(*proof);
  conn.seal(me->keys().to_hub, me->keys().to_rank, max_body(static_cast<size_t>(options.size)));
  // No second try from here on: the hub may have let this rank in, which it does once.
  auto accepted = receive(conn, deadline, [&] { return conn.next(); });
  if (!accepted) return forward(accepted);
  return Link(std::move(conn), options);
}

Result<Link> Link::join(const Place& hub, const Options& options, Deadline deadline) {
  std::string last = "it has no address";
  while (!deadline.over()) {
    for (const std::string& address : hub.addresses) {
      const Deadline soon = sooner(deadline, Deadline::in(one_address));
      auto socket = connect_to(address, hub.port, soon);
      if (!socket) {
        last = socket.error().what;
        continue;
      }
      set_stream_options(socket->get(), options.pace.silence);
      auto link = join(std::move(*socket), options, soon, deadline);
      if (link) {
        link->hub_address_ = address;
        return link;
      }
      last = address + ": " + link.error().what;
    }
    ::poll(nullptr, 0, 100);
  }
  return fail("rank 0 is out of reach (" + last + ")");
}

Status Link::pump() {
  const auto now = Clock::now();
  if (now - pumped_ > ticks(asleep)) heard_ = now;
  pumped_ = now;
  if (now - pinged_ >= ticks(pace_.ping)) {
    pinged_ = now;
    conn_.send(sign_);
  }
  const Status written = conn_.flush();
  auto open = conn_.fill();
  for (;;) {
    auto m = conn_.next();
    if (!m) return forward(m);
    if (!*m) break;
    heard_ = now;
    if ((*m)->kind != Message::Kind::ping) arrived_.push_back(std::move(**m));
  }
  if (!written) return written;
  if (!open) return forward(open);
  if (!*open) return fail("it is gone");
  if (now - heard_ > ticks(pace_.silence))
    return fail("it has given no sign of life for " +
                std::to_string(static_cast<int>(pace_.silence.count())) + " s");
  return {};
}

std::optional<Message> Link::next() {
  if (arrived_.empty()) return std::nullopt;
  Message m = std::move(arrived_.front());
  arrived_.pop_front();
  return m;
}

Result<std::vector<std::string>> Link::call(Message m, Deadline deadline) {
  m.generation = generation_;
  m.id = ++last_id_;
  m.number = deadline.poll_ms();
  const Deadline patience{
      deadline.at == Clock::time_point::max() ? deadline.at : deadline.at + ticks(answer_slack)};
  conn_.send(m);
  for (;;) {
    const Status alive = pump();
    const auto answer = std::find_if(arrived_.begin(), arrived_.end(), [&](const Message& a) {
      return (a.kind == Message::Kind::reply || a.kind == Message::Kind::error) && a.id == m.id;
    });
    if (answer != arrived_.end()) {
      Message a = std::move(*answer);
      arrived_.erase(answer);
      if (a.kind == Message::Kind::error) return fail(a.name);
      return std::move(a.values);
    }
    if (!alive) return fail("lost the supervisor of rank 0: " + alive.error().what);
    if (patience.over()) return fail("the supervisor of rank 0 does not answer");
    wait(conn_, sooner(patience, Deadline::in(pace_.ping / 2)));
  }
}

void Link::set_progress(int64_t step, std::string phase) {
  sign_.number = step;
  sign_.name = std::move(phase);
}

}  // namespace trainlaunch
