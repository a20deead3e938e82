// Saves while memory runs out in the thread that saves: each costs no more than itself.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

#include "ckpt_testing.h"

namespace {

// The next request of this thread that is as large is refused; those after it are granted, as what
// went before has given its memory back: nlohmann's destructors need some.
thread_local size_t too_large = std::numeric_limits<size_t>::max();
thread_local bool refused = false;

}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  if (bytes >= too_large) {
    refused = true;
    too_large = std::numeric_limits<size_t>::max();
    throw std::bad_alloc();
  }
  void* p = std::malloc(bytes);
  if (!p) throw std::bad_alloc();
  return p;
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace trainlaunch {
namespace {

// A large request is refused between the first gather of this name and the next one.
class ScarceAfter final : public testing::PassedOn<Control> {
 public:
  ScarceAfter(Control& inner, std::string name) : PassedOn(inner), name_(std::move(name)) {}
  Result<std::vector<std::string>> gather(std::string_view name, std::string_view mine,
                                          Deadline deadline) override {
    too_large = std::numeric_limits<size_t>::max();
    refused_ = refused_ || std::exchange(refused, false);
    auto all = PassedOn::gather(name, mine, deadline);
    if (name != name_) return all;
    name_.clear();
    too_large = 200;
    return all;
  }
  bool has_refused() const { return refused_; }

 private:
  std::string name_;
  std::atomic<bool> refused_{false};
};

// Has no memory for the first gather of this name.
class Wordless final : public testing::PassedOn<Control> {
 public:
  Wordless(Control& inner, std::string name) : PassedOn(inner), name_(std::move(name)) {}
  Result<std::vector<std::string>> gather(std::string_view name, std::string_view mine,
                                          Deadline deadline) override {
    if (name == name_) {
      name_.clear();
      throw std::bad_alloc();
    }
    return PassedOn::gather(name, mine, deadline);
  }

 private:
  std::string name_;
};

}  // namespace

TEST_CASE("memory that one rank lacks fails that save on all ranks, and no other") {
  for (const int ranks : {1, 2}) {
    for (int scarce = 0; scarce < ranks; ++scarce) {
      int failures = 0;
      for (const char* name : {"save: begin", "save: directory", "save: written", "save: outcome",
                               "save: read back"}) {
        Temporary dir;
        std::vector<std::string> said(static_cast<size_t>(ranks));
        Team(ranks).run([&](Control& control) {
          const int rank = control.world().rank;
          ScarceAfter channel(control, rank == scarce ? name : "");
          auto writer = open_writer(dir / "run", channel);
          REQUIRE(writer);
          Holding mine(rank, ranks);
          mine.fill(1);
          const Outcome first = save_now(**writer, mine.pieces, 1);
          CHECK(!first.out_of_step);
          if (!first.status) said[static_cast<size_t>(rank)] = first.status.error().what;
          const bool kept = load(dir / "run", 1) == "";
          CHECK(kept == first.status.has_value());
          mine.fill(2);
          const Outcome second = save_now(**writer, mine.pieces, 2);
          CHECK_MESSAGE(second.status, (second.status ? "" : second.status.error().what));
        });
        for (const std::string& s : said) CHECK(s == said[0]);
        if (!said[0].empty()) CHECK(said[0].find("memory") != std::string::npos);
        failures += !said[0].empty();
        CHECK(load(dir / "run", 2) == "");
      }
      CHECK(failures >= 2);
    }
  }
}

TEST_CASE("what there is no memory to say is said later") {
  for (const char* name : {"save: begin", "save: directory", "save: written", "save: outcome",
                           "save: read back", "save: done"}) {
    Temporary dir;
    Team(2).run([&](Control& control) {
      Wordless channel(control, control.world().rank == 1 ? name : "");
      auto writer = open_writer(dir / "run", channel);
      REQUIRE(writer);
      CHECK(save_known(**writer, control.world(), 1));
    });
    CHECK(load(dir / "run", 1) == "");
  }
}

}  // namespace trainlaunch
