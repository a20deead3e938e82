#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "boot/boot.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <thread>

#include "boot/bootstrap.h"
#include "boot/hub.h"
#include "boot/ledger.h"
#include "boot/link.h"
#include "boot/local_sockets.h"
#include "boot/net.h"
#include "boot/worker.h"

using namespace trainlaunch;
using namespace std::chrono_literals;
using Kind = Message::Kind;

namespace {

World world_of(int size, int per_node, int rank = 0) {
  std::vector<std::string> hosts;
  for (int r = 0; r < size; ++r) hosts.push_back("n" + std::to_string(r / per_node + 1));
  return arrange(static_cast<uint32_t>(rank), hosts).value();
}

Message make(Kind kind, uint64_t id, std::string name, std::vector<std::string> values = {},
             int64_t number = -1) {
  Message m;
  m.kind = kind;
  m.id = id;
  m.number = number;
  m.name = std::move(name);
  m.values = std::move(values);
  return m;
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

Secret secret_of(uint8_t byte) {
  Secret s;
  s.fill(byte);
  return s;
}

Link::Options options_of(int rank, int size, Pace pace = {}, Secret secret = secret_of(7)) {
  return {secret, {static_cast<uint32_t>(rank), 0}, size, pace};
}

Environment environment(std::map<std::string, std::string> vars) {
  return [vars = std::move(vars)](const char* name) -> const char* {
    const auto it = vars.find(name);
    return it == vars.end() ? nullptr : it->second.c_str();
  };
}

// A hub and its ranks' links, all in this process.
struct Star {
  std::unique_ptr<Hub> hub;
  std::vector<Link> links;

  explicit Star(const World& world, Pace pace = {}) {
    auto h = Hub::start({world, secret_of(7), Hub::Listen::loopback, pace});
    REQUIRE(h);
    hub = std::move(*h);
    for (int r = 0; r < world.size; ++r) {
      auto link = Link::join({{"127.0.0.1"}, hub->port()}, options_of(r, world.size, pace),
                             Deadline::in(5s));
      REQUIRE(link);
      links.push_back(std::move(*link));
    }
  }
};

// Waits for the next message of a link that is no answer.
std::optional<Message> hear(Link& link, Seconds limit = 5s) {
  const Deadline deadline = Deadline::in(limit);
  while (!deadline.over()) {
    const bool alive = link.pump().has_value();
    if (auto m = link.next()) return m;
    if (!alive) return std::nullopt;
    pollfd p{link.fd(), link.events(), 0};
    ::poll(&p, 1, 20);
  }
  return std::nullopt;
}

}  // namespace

TEST_SUITE("messages") {
  TEST_CASE("a message comes back as it was") {
    Message m = make(Kind::gather, 1ull << 40, "name", {"", std::string("a\0b", 3)}, -5);
    m.generation = 3;
    const auto back = decode(encode(m));
    REQUIRE(back);
    CHECK(back->kind == Kind::gather);
    CHECK(back->generation == 3);
    CHECK(back->id == 1ull << 40);
    CHECK(back->number == -5);
    CHECK(back->name == "name");
    CHECK(back->values == m.values);
  }

  TEST_CASE("no length in a message is trusted") {
    const std::string good = encode(make(Kind::put, 1, "key", {"value"}));
    for (size_t n = 0; n < good.size(); ++n) CHECK_FALSE(decode(good.substr(0, n)));
    CHECK_FALSE(decode(good + "x"));
    for (size_t i = 0; i < good.size(); ++i) {
      std::string bad = good;
      bad[i] = '\xff';
      (void)decode(bad);  // an error or another message, never a crash
    }
  }
}

TEST_SUITE("handshake") {
  struct Ends {
    handshake::Rank rank;
    handshake::Hub hub;
  };
  Ends begin(const Secret& of_rank, const Secret& of_hub) {
    auto rank = handshake::Rank::begin(of_rank, {2, 0});
    REQUIRE(rank);
    auto hub = handshake::Hub::begin(of_hub, rank->hello());
    REQUIRE(hub);
    return {*rank, *hub};
  }

  TEST_CASE("two that know the secret agree on who speaks and on the keys") {
    Ends e = begin(secret_of(7), secret_of(7));
    const auto proof = e.rank.answer(e.hub.challenge());
    REQUIRE(proof);
    CHECK(e.hub.accept(*proof));
    CHECK(e.hub.claim().rank == 2);
    CHECK(e.hub.keys().to_hub == e.rank.keys().to_hub);
    CHECK(e.hub.keys().to_rank == e.rank.keys().to_rank);
    CHECK(e.hub.keys().to_rank != e.hub.keys().to_hub);
  }

  TEST_CASE("a rank does not prove itself to a hub with another secret") {
    Ends e = begin(secret_of(7), secret_of(8));
    CHECK_FALSE(e.rank.answer(e.hub.challenge()));
  }

  TEST_CASE("a hub refuses a proof made for another hello, and its own bytes sent back") {
    Ends e = begin(secret_of(7), secret_of(7));
    Ends other = begin(secret_of(7), secret_of(7));
    const auto replayed = other.rank.answer(other.hub.challenge());
    REQUIRE(replayed);
    CHECK_FALSE(e.hub.accept(*replayed));
    CHECK_FALSE(e.hub.accept(std::string_view(e.hub.challenge()).substr(32)));
    CHECK_FALSE(e.hub.accept(""));
  }

  TEST_CASE("who changes the rank in a hello needs the secret to go on") {
    auto rank = handshake::Rank::begin(secret_of(7), {2, 0});
    REQUIRE(rank);
    std::string hello = rank->hello();
    hello[9] = 3;
    auto hub = handshake::Hub::begin(secret_of(7), hello);
    REQUIRE(hub);
    CHECK(hub->claim().rank == 3);
    CHECK_FALSE(rank->answer(hub->challenge()));
  }

  TEST_CASE("a seal refuses frames that were altered, repeated, dropped or reordered") {
    Seal out(secret_of(1));
    const std::string a = out.next("a"), b = out.next("b"), c = out.next("c");
    Seal good(secret_of(1));
    CHECK(good.check("a", a));
    CHECK(good.check("b", b));
    Seal altered(secret_of(1)), repeated(secret_of(1)), reordered(secret_of(1)),
        other(secret_of(2));
    CHECK_FALSE(altered.check("A", a));
    CHECK(repeated.check("a", a));
    CHECK_FALSE(repeated.check("a", a));
    CHECK_FALSE(reordered.check("b", b));
    CHECK_FALSE(other.check("a", a));
  }
}

TEST_SUITE("ledger") {
  const Clock::time_point t0 = Clock::now();

  Ledger joined(int size, int per_node) {
    Ledger l(world_of(size, per_node), Pace{});
    for (int r = 0; r < size; ++r) l.joined(r);
    return l;
  }

  TEST_CASE("a gather gives everyone's value in rank order") {
    Ledger l = joined(3, 2);
    for (int r : {2, 0, 1}) l.handle(r, make(Kind::gather, 10u + r, "g", {std::to_string(r)}), t0);
    const auto out = l.take_outgoing();
    REQUIRE(out.size() == 3);
    for (const auto& o : out) {
      CHECK(o.message.kind == Kind::reply);
      CHECK(o.message.id == 10u + o.rank);
      CHECK(o.message.values == std::vector<std::string>{"0", "1", "2"});
    }
  }

  TEST_CASE("the n-th gather of a name meets the n-th of the others") {
    Ledger l = joined(2, 2);
    l.handle(0, make(Kind::gather, 1, "g", {"a"}), t0);
    l.handle(0, make(Kind::gather, 2, "g", {"b"}), t0);
    CHECK(l.take_outgoing().empty());
    l.handle(1, make(Kind::gather, 1, "g", {"c"}), t0);
    auto out = l.take_outgoing();
    REQUIRE(out.size() == 2);
    CHECK(out[0].message.values == std::vector<std::string>{"a", "c"});
    l.handle(1, make(Kind::gather, 2, "g", {"d"}), t0);
    out = l.take_outgoing();
    REQUIRE(out.size() == 2);
    CHECK(out[0].message.values == std::vector<std::string>{"b", "d"});
  }

  TEST_CASE("a gather that is late names the ranks that did not come, and where they are") {
    Ledger l = joined(4, 2);
    l.handle(0, make(Kind::gather, 1, "weights", {""}, 1000), t0);
    l.handle(1, make(Kind::gather, 1, "weights", {""}, -1), t0);
    l.handle(2, make(Kind::gather, 1, "loss", {""}, -1), t0);
    Message ping;
    ping.number = 7;
    ping.name = "backward";
    l.handle(3, ping, t0);
    CHECK(l.due() == t0 + 1s);
    l.expire(t0 + 999ms);
    CHECK(l.take_outgoing().empty());
    l.expire(t0 + 1s);
    const auto out = l.take_outgoing();
    REQUIRE(out.size() == 2);  // it fails on every rank that waits, whatever its own deadline
    CHECK(out[0].message.kind == Kind::error);
    CHECK(contains(out[0].message.name, "'weights'"));
    CHECK(contains(out[0].message.name, "2 (n2, in 'loss')"));
    CHECK(contains(out[0].message.name, "3 (n2, at step 7, backward)"));
    CHECK_FALSE(contains(out[0].message.name, "(n1"));
    // Who comes after that hears the same.
    l.handle(3, make(Kind::gather, 1, "weights", {""}, -1), t0 + 2s);
    const auto later = l.take_outgoing();
    REQUIRE(later.size() == 1);
    CHECK(later[0].message.name == out[0].message.name);
  }

  TEST_CASE("a key is put once, and waited for") {
    Ledger l = joined(2, 2);
    l.handle(1, make(Kind::get, 1, "id", {}, 500), t0);
    l.handle(0, make(Kind::put, 1, "id", {"x"}), t0);
    auto out = l.take_outgoing();
    REQUIRE(out.size() == 2);
    CHECK(out[0].rank == 0);
    CHECK(out[1].rank == 1);
    CHECK(out[1].message.values == std::vector<std::string>{"x"});
    l.handle(1, make(Kind::put, 2, "id", {"y"}), t0);
    l.handle(1, make(Kind::get, 3, "id"), t0);
    out = l.take_outgoing();
    REQUIRE(out.size() == 2);
    CHECK(out[0].message.kind == Kind::error);
    CHECK(out[1].message.values == std::vector<std::string>{"x"});
    l.handle(1, make(Kind::get, 4, "never", {}, 500), t0);
    l.expire(t0 + 500ms);
    out = l.take_outgoing();
    REQUIRE(out.size() == 1);
    CHECK(out[0].message.kind == Kind::error);
    CHECK(contains(out[0].message.name, "'never'"));
  }

  TEST_CASE("calls of an earlier generation are refused") {
    World w = world_of(1, 1);
    w.generation = 2;
    Ledger l(w, Pace{});
    l.joined(0);
    l.handle(0, make(Kind::put, 1, "k", {"v"}), t0);
    const auto out = l.take_outgoing();
    REQUIRE(out.size() == 1);
    CHECK(out[0].message.kind == Kind::error);
  }

  TEST_CASE("a death by signal counts at once, and every waiting call hears of it") {
    Ledger l = joined(3, 3);
    l.handle(0, make(Kind::gather, 5, "g", {""}), t0);
    l.handle(1, make(Kind::get, 6, "k"), t0);
    l.handle(2, make(Kind::failed, 0, "rank 2 was killed", {}, 137), t0);
    int refused = 0, told = 0;
    for (const auto& o : l.take_outgoing()) {
      CHECK(o.message.name == "rank 2 was killed");
      refused += o.message.kind == Kind::error;
      told += o.message.kind == Kind::failure && o.message.number == 137;
    }
    CHECK(refused == 2);
    CHECK(told == 3);
    l.handle(0, make(Kind::gather, 7, "g", {""}), t0);
    CHECK(l.take_outgoing().at(0).message.name == "rank 2 was killed");
  }

  TEST_CASE("an exit code waits for a signal that may have caused it") {
    Ledger l = joined(3, 3);
    l.handle(0, make(Kind::failed, 0, "rank 0 exited", {}, 1), t0);
    CHECK(l.take_outgoing().empty());
    SUBCASE("which comes") {
      l.handle(1, make(Kind::failed, 0, "rank 1 was killed", {}, 139), t0 + 100ms);
      CHECK(l.take_outgoing().at(0).message.number == 139);
    }
    SUBCASE("which does not come") {
      l.handle(1, make(Kind::failed, 0, "rank 1 exited", {}, 3), t0 + 100ms);
      l.expire(l.due());
      const auto out = l.take_outgoing();
      REQUIRE(out.size() == 3);
      CHECK(out[0].message.kind == Kind::failure);
      CHECK(out[0].message.name == "rank 0 exited");
      CHECK(out[0].message.number == 1);
    }
  }

  TEST_CASE("a lost supervisor ends the job step and is not waited for") {
    Ledger l = joined(3, 2);
    l.lost(2, "is gone", t0);
    auto out = l.take_outgoing();
    REQUIRE(out.size() == 2);
    CHECK(out[0].message.kind == Kind::failure);
    CHECK(contains(out[0].message.name, "rank 2 (n2)"));
    l.handle(0, make(Kind::left, 0, "", {}, 143), t0);
    l.handle(1, make(Kind::left, 0, "", {}, 143), t0);
    out = l.take_outgoing();
    REQUIRE(out.size() == 2);
    CHECK(out[0].message.kind == Kind::finish);
    CHECK(out[0].message.number == 1);
  }

  TEST_CASE("a rank that does not leave after a failure is waited for no longer than 20 s") {
    Ledger l = joined(3, 2);
    l.handle(1, make(Kind::failed, 0, "rank 1 was killed", {}, 137), t0);
    l.handle(1, make(Kind::left, 0, "", {}, 137), t0);
    l.handle(0, make(Kind::left, 0, "", {}, 143), t0 + 1s);
    l.take_outgoing();
    CHECK(l.due() == t0 + 20s);
    l.expire(t0 + 19s);
    CHECK_FALSE(l.finished());
    l.expire(t0 + 20s);
    CHECK(l.finished());
    const auto out = l.take_outgoing();
    REQUIRE(out.size() == 3);  // rank 2 as well: its supervisor can end
    for (const auto& o : out) {
      CHECK(o.message.kind == Kind::finish);
      CHECK(o.message.number == 137);
    }
    CHECK(l.due() == Clock::time_point::max());
  }

  TEST_CASE("the common exit code is the largest of those that are no failures") {
    Ledger l = joined(2, 2);
    l.handle(0, make(Kind::left, 0, "", {}, 0), t0);
    CHECK_FALSE(l.finished());
    l.handle(1, make(Kind::left, 0, "", {}, 75), t0);
    CHECK(l.finished());
    CHECK(l.take_outgoing().at(1).message.number == 75);
  }
}

TEST_SUITE("hub") {
  TEST_CASE("ranks gather, put and get over TCP") {
    Star star(world_of(3, 3));
    std::vector<std::thread> threads;
    std::atomic<int> right = 0;
    for (int r = 0; r < 3; ++r)
      threads.emplace_back([&, r] {
        Link& link = star.links[r];
        const std::string big(Control::max_value, static_cast<char>('a' + r));
        auto all = link.call(make(Kind::gather, 0, "big", {big}), Deadline::in(20s));
        if (all && all->size() == 3 && (*all)[2].size() == big.size() && (*all)[2][5] == 'c')
          ++right;
        if (r == 1) (void)link.call(make(Kind::put, 0, "k", {"v"}), Deadline::in(20s));
        auto v = link.call(make(Kind::get, 0, "k"), Deadline::in(20s));
        if (v && *v == std::vector<std::string>{"v"}) ++right;
      });
    for (auto& t : threads) t.join();
    CHECK(right == 6);
  }

  TEST_CASE("a rank with the wrong secret, number or generation does not get in") {
    Star star(world_of(2, 2));
    const Link::Place place{{"127.0.0.1"}, star.hub->port()};
    const auto refused = [&](Link::Options o) {
      auto link = Link::join(place, o, Deadline::in(300ms));
      if (!link) return true;
      return !link->call(make(Kind::put, 0, "intruder", {"x"}), Deadline::in(1s)).has_value();
    };
    CHECK(refused(options_of(0, 2, {}, secret_of(8))));  // wrong secret
    CHECK(refused(options_of(2, 2)));                    // no such rank
    CHECK(refused(options_of(1, 2)));                    // joined before
    Link::Options stale = options_of(1, 2);
    stale.who.generation = 1;
    CHECK(refused(stale));
    // And nobody was disturbed.
    CHECK(star.links[0].call(make(Kind::put, 0, "intruder", {"y"}), Deadline::in(5s)));
  }

  TEST_CASE("a stranger's bytes are neither measured nor kept, and the connection ends") {
    Star star(world_of(1, 1));
    auto fd = connect_to("127.0.0.1", star.hub->port(), Deadline::in(5s));
    REQUIRE(fd);
    // What would be a frame of 4 GiB.
    const std::string junk(1 << 20, '\xff');
    const Deadline deadline = Deadline::in(5s);
    bool closed = false;
    while (!closed && !deadline.over()) {
      const ssize_t n = ::send(fd->get(), junk.data(), junk.size(), MSG_NOSIGNAL);
      closed = n < 0 && (errno == EPIPE || errno == ECONNRESET);
      if (n < 0 && errno == EAGAIN) {
        pollfd p{fd->get(), POLLIN | POLLOUT, 0};
        ::poll(&p, 1, 50);
      }
    }
    CHECK(closed);
    CHECK(star.links[0].call(make(Kind::put, 0, "k", {"v"}), Deadline::in(5s)));
  }

  TEST_CASE("a member whose frames do not verify is lost") {
    const World world = world_of(2, 2);
    auto hub = Hub::start({world, secret_of(7), Hub::Listen::loopback, Pace{}});
    REQUIRE(hub);
    const Link::Place place{{"127.0.0.1"}, (*hub)->port()};
    auto honest = Link::join(place, options_of(0, 2), Deadline::in(5s));
    REQUIRE(honest);

    auto fd = connect_to("127.0.0.1", place.port, Deadline::in(5s));
    REQUIRE(fd);
    Conn conn(std::move(*fd), 1 << 20);
    auto me = handshake::Rank::begin(secret_of(7), {1, 0});
    REQUIRE(me);
    conn.send_raw(me->hello());
    std::optional<std::string> challenge;
    for (int i = 0; i < 500 && !challenge; ++i) {
      REQUIRE(conn.flush());
      pollfd p{conn.fd(), POLLIN, 0};
      ::poll(&p, 1, 10);
      REQUIRE(conn.fill());
      challenge = conn.take(handshake::challenge_bytes);
    }
    REQUIRE(challenge);
    conn.send_raw(me->answer(*challenge).value());

    const std::string body = encode(make(Kind::put, 1, "k", {"v"}));
    std::string frame;
    put_u32(frame, static_cast<uint32_t>(body.size()));
    frame += body;
    Seal seal(me->keys().to_hub);
    const std::string mac = seal.next(frame);
    SUBCASE("altered") {
      frame.back() = 'w';
      conn.send_raw(frame + mac);
    }
    SUBCASE("replayed") { conn.send_raw(frame + mac + frame + mac); }
    SUBCASE("oversized") {
      std::string huge;
      put_u32(huge, 1u << 30);
      conn.send_raw(huge);
    }
    REQUIRE(conn.flush());
    const auto m = hear(*honest);
    REQUIRE(m);
    CHECK(m->kind == Kind::failure);
    CHECK(contains(m->name, "rank 1 (n1)"));
  }

  TEST_CASE("losing a rank reaches every other at once") {
    Star star(world_of(3, 1));
    star.links.erase(star.links.begin() + 1);
    for (Link& link : star.links) {
      const auto m = hear(link);
      REQUIRE(m);
      CHECK(m->kind == Kind::failure);
      CHECK(contains(m->name, "rank 1 (n2)"));
    }
  }

  TEST_CASE("who is silent is lost, who waits in a call is not") {
    const Pace pace{100ms, 600ms, 10ms};
    Star star(world_of(2, 1), pace);
    // Rank 0 waits without end; rank 1 says nothing.
    const auto answer = star.links[0].call(make(Kind::get, 0, "never"), Deadline::never());
    REQUIRE_FALSE(answer);
    CHECK(contains(answer.error().what, "rank 1 (n2)"));
    CHECK(contains(answer.error().what, "no sign of life"));
  }

  TEST_CASE("a hub that is gone is an error of every call") {
    Star star(world_of(2, 1));
    star.hub.reset();
    const auto answer = star.links[1].call(make(Kind::get, 0, "never"), Deadline::never());
    REQUIRE_FALSE(answer);
    CHECK(contains(answer.error().what, "rank 0"));
  }

  TEST_CASE("a hub that has shown itself may take its time to say welcome") {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    std::thread slow([socket = fds[0]] {
      Conn conn(Fd(socket), handshake::hello_bytes);
      const auto take = [&](size_t n) {
        std::optional<std::string> bytes;
        for (int i = 0; i < 500 && !(bytes = conn.take(n)); ++i) {
          pollfd p{conn.fd(), POLLIN, 0};
          ::poll(&p, 1, 10);
          (void)conn.fill();
        }
        return bytes.value_or("");
      };
      auto hub = handshake::Hub::begin(secret_of(7), take(handshake::hello_bytes));
      if (!hub) return;
      conn.limit(handshake::proof_bytes);
      conn.send_raw(hub->challenge());
      (void)conn.flush();
      if (!hub->accept(take(handshake::proof_bytes))) return;
      conn.seal(hub->keys().to_rank, hub->keys().to_hub, max_body(1));
      std::this_thread::sleep_for(1200ms);
      conn.send(Message{});
      (void)conn.flush();
    });
    CHECK(Link::join(Fd(fds[1]), options_of(1, 2), Deadline::in(1s), Deadline::in(10s)));
    slow.join();
  }

  TEST_CASE("a rank looks for the hub at all its addresses") {
    auto hub = Hub::start({world_of(1, 1), secret_of(7), Hub::Listen::loopback, Pace{}});
    REQUIRE(hub);
    auto link = Link::join({{"nonsense", "127.0.0.2", "127.0.0.1"}, (*hub)->port()},
                           options_of(0, 1), Deadline::in(5s));
    REQUIRE(link);
    CHECK(link->hub_address() == "127.0.0.1");
  }
}

TEST_SUITE("worker") {
  struct Pair {
    Fd supervisor;
    std::unique_ptr<WorkerControl> control;

    Pair() {
      int fds[2];
      REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
      supervisor = Fd(fds[0]);
      Conn conn(Fd(::dup(fds[0])), max_body(1));
      conn.send(welcome(world_of(2, 1, 1), {}));
      REQUIRE(conn.flush());
      auto c = make_worker_control(fds[1]);
      REQUIRE(c);
      control = std::move(*c);
    }
  };

  Message read_one(Conn & conn) {
    for (;;) {
      auto m = conn.next();
      REQUIRE(m);
      if (*m) return **m;
      pollfd p{conn.fd(), POLLIN, 0};
      ::poll(&p, 1, 1000);
      REQUIRE(conn.fill());
    }
  }

  TEST_CASE("a worker learns its world, asks, and is told of failures") {
    Pair pair;
    CHECK(pair.control->world().rank == 1);
    CHECK(pair.control->world().nodes == std::vector<std::string>{"n1", "n2"});
    pair.control->progress(12, "backward");
    std::thread supervisor([&] {
      Conn conn(std::move(pair.supervisor), max_body(1));
      Message m = read_one(conn);
      CHECK(m.kind == Kind::progress);
      CHECK(m.number == 12);
      m = read_one(conn);
      CHECK(m.kind == Kind::gather);
      conn.send(make(Kind::reply, m.id, "", {"1", "0"}));
      CHECK(conn.flush());
      read_one(conn);
      conn.send(make(Kind::failure, 0, "rank 0 died", {}, 137));
      CHECK(conn.flush());
    });
    const auto vote = pair.control->vote("go", true, Deadline::in(10s));
    REQUIRE(vote);
    CHECK_FALSE(*vote);
    const Status barrier = pair.control->barrier("end", Deadline::never());
    REQUIRE_FALSE(barrier);
    CHECK(barrier.error().what == "rank 0 died");
    supervisor.join();
    CHECK_FALSE(pair.control->put("k", "v"));
  }

  TEST_CASE("alone, control answers itself") {
    auto control = make_single_control();
    CHECK(control->world().size == 1);
    CHECK(control->put("k", "v"));
    CHECK_FALSE(control->put("k", "w"));
    CHECK(control->get("k", Deadline::in(1s)).value() == "v");
    CHECK_FALSE(control->get("other", Deadline::in(10ms)));
    CHECK(control->gather("g", "x", Deadline::in(1s)).value() == std::vector<std::string>{"x"});
    CHECK(control->vote("v", false, Deadline::in(1s)).value() == false);
    CHECK(control->barrier("b", Deadline::in(1s)));
  }
}

TEST_SUITE("local sockets") {
  TEST_CASE("every pair of a node is connected, each end to the right rank") {
    constexpr int n = 4;
    std::vector<LocalListener> listeners;
    std::vector<LocalListener::Card> cards;
    for (int r = 0; r < n; ++r) {
      listeners.push_back(LocalListener::open().value());
      cards.push_back(listeners.back().card());
    }
    std::vector<std::vector<Fd>> sockets(n);
    std::vector<std::thread> threads;
    for (int r = 0; r < n; ++r)
      threads.emplace_back([&, r] {
        auto s = listeners[r].connect(cards, r, Deadline::in(5s));
        if (s) sockets[r] = std::move(*s);
      });
    for (auto& t : threads) t.join();
    for (int a = 0; a < n; ++a) {
      REQUIRE(sockets[a].size() == n);
      CHECK_FALSE(sockets[a][a]);
      for (int b = 0; b < n; ++b) {
        if (a == b) continue;
        const char text = static_cast<char>(10 * a + b);
        CHECK(::send(sockets[a][b].get(), &text, 1, 0) == 1);
        char got = 0;
        CHECK(::recv(sockets[b][a].get(), &got, 1, 0) == 1);
        CHECK(got == text);
      }
    }
  }

  TEST_CASE("a rank with a wrong nonce is not taken for one of the node") {
    auto a = LocalListener::open().value(), b = LocalListener::open().value();
    auto seen_by_b = a.card();
    seen_by_b.nonce[0] ^= 1;
    std::thread other([&] {
      CHECK_FALSE(b.connect({seen_by_b, b.card()}, 1, Deadline::in(200ms)));
    });
    CHECK_FALSE(a.connect({a.card(), b.card()}, 0, Deadline::in(200ms)));
    other.join();
  }
}

TEST_SUITE("bootstrap") {
  TEST_CASE("ranks count by node and local rank, however they were dealt out") {
    // srun -m cyclic over two nodes: 0 and 2 on a, 1 and 3 on b.
    const std::vector<std::string> hosts{"a", "b", "a", "b"};
    const int expected[] = {0, 2, 1, 3};
    for (uint32_t p = 0; p < 4; ++p) {
      const auto w = arrange(p, hosts);
      REQUIRE(w);
      CHECK(w->rank == expected[p]);
      CHECK(w->size == 4);
      CHECK(w->local_rank == static_cast<int>(p / 2));
      CHECK(w->local_size == 2);
      CHECK(w->node == static_cast<int>(p % 2));
      CHECK(w->nodes == std::vector<std::string>{"a", "b"});
      CHECK(w->node_of == std::vector<int>{0, 0, 1, 1});
    }
    CHECK_FALSE(arrange(4, hosts));
    CHECK_FALSE(arrange(0, {"a", ""}));
  }

  TEST_CASE("what started this process is told from its environment") {
    CHECK(find_launcher(environment({})).value() == Launcher::alone);
    CHECK(find_launcher(environment({{"PMIX_NAMESPACE", "slurm.pmix.1.0"}, {"PMIX_RANK", "0"}}))
              .value() == Launcher::pmix);
    CHECK(find_launcher(
              environment(
                  {{"SLURM_JOB_ID", "1"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}))
              .value() == Launcher::alone);
    CHECK(
        find_launcher(environment({{"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NUM_NODES", "1"}})).value() ==
        Launcher::alone);
  }

  TEST_CASE("tasks without PMIx, and a forgotten srun, are told the line to use") {
    const auto wrong = [](std::map<std::string, std::string> vars) {
      const auto r = find_launcher(environment(std::move(vars)));
      REQUIRE_FALSE(r);
      CHECK(r.error().exit == exit_code::usage);
      CHECK(contains(r.error().what, "srun --mpi=pmix -n4"));
    };
    wrong({{"SLURM_JOB_ID", "1"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}});
    wrong({{"SLURM_JOB_ID", "1"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_NUM_NODES", "2"}});
    wrong({{"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NUM_NODES", "2"}, {"SLURM_NTASKS_PER_NODE", "2"}});
    // A salloc shell that Slurm runs as a step of its own (0xfffffffa).
    wrong({{"SLURM_JOB_ID", "1"}, {"SLURM_STEP_ID", "4294967290"}, {"SLURM_NTASKS", "4"}});
  }

  TEST_CASE("a world smaller than its job step is refused, but mpirun inside one is not") {
    const auto env = environment({{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}});
    CHECK(check_world(env, "slurm.pmix.1.0", 4));
    CHECK(check_world(env, "1897529345", 2));
    const auto r = check_world(env, "singleton.n1.77", 1);
    REQUIRE_FALSE(r);
    CHECK(r.error().exit == exit_code::usage);
    CHECK_FALSE(check_world(env, "slurm.pmix.1.0", 1));
  }
}
