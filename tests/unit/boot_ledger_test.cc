// What the hub keeps of the ranks' calls, and answers, at times that the test makes.
#include "boot/ledger.h"

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <vector>

#include "boot_messages.h"
#include "texts.h"

using namespace trainlaunch;
using namespace std::chrono_literals;
using Kind = Message::Kind;

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
    CHECK(has(out[0].message.name, "'weights'"));
    CHECK(has(out[0].message.name, "2 (n2, in 'loss')"));
    CHECK(has(out[0].message.name, "3 (n2, at step 7, backward)"));
    CHECK_FALSE(has(out[0].message.name, "(n1"));
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
    CHECK(has(out[0].message.name, "'never'"));
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
    CHECK(has(out[0].message.name, "rank 2 (n2)"));
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
