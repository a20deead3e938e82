// The hub and the ranks' links to it, over sockets.
#include "boot/hub.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "boot/conn.h"
#include "boot/link.h"
#include "boot/net.h"
#include "boot_messages.h"
#include "texts.h"

using namespace trainlaunch;
using namespace std::chrono_literals;
using Kind = Message::Kind;

namespace {

Link::Options options_of(int rank, int size, Pace pace = {}, Secret secret = secret_of(7)) {
  return {secret, {static_cast<uint32_t>(rank), 0}, size, pace};
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
    CHECK(has(m->name, "rank 1 (n1)"));
  }

  TEST_CASE("losing a rank reaches every other at once") {
    Star star(world_of(3, 1));
    star.links.erase(star.links.begin() + 1);
    for (Link& link : star.links) {
      const auto m = hear(link);
      REQUIRE(m);
      CHECK(m->kind == Kind::failure);
      CHECK(has(m->name, "rank 1 (n2)"));
    }
  }

  TEST_CASE("who is silent is lost, who waits in a call is not") {
    const Pace pace{100ms, 600ms, 10ms};
    Star star(world_of(2, 1), pace);
    // Rank 0 waits without end; rank 1 says nothing.
    const auto answer = star.links[0].call(make(Kind::get, 0, "never"), Deadline::never());
    REQUIRE_FALSE(answer);
    CHECK(has(answer.error().what, "rank 1 (n2)"));
    CHECK(has(answer.error().what, "no sign of life"));
  }

  TEST_CASE("a hub that is gone is an error of every call") {
    Star star(world_of(2, 1));
    star.hub.reset();
    const auto answer = star.links[1].call(make(Kind::get, 0, "never"), Deadline::never());
    REQUIRE_FALSE(answer);
    CHECK(has(answer.error().what, "rank 0"));
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
