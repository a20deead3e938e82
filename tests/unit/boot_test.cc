// Messages, the handshake, and what a rank has of its node and of its job step.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "boot/boot.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "boot/auth.h"
#include "boot/bootstrap.h"
#include "boot/conn.h"
#include "boot/local_sockets.h"
#include "boot/worker.h"
#include "boot_messages.h"
#include "texts.h"

using namespace trainlaunch;
using namespace std::chrono_literals;
using Kind = Message::Kind;

namespace {

Environment environment(std::map<std::string, std::string> vars) {
  return [vars = std::move(vars)](const char* name) -> const char* {
    const auto it = vars.find(name);
    return it == vars.end() ? nullptr : it->second.c_str();
  };
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
      CHECK(has(r.error().what, "srun --mpi=pmix -n4"));
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
