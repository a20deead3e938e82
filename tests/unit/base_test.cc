#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "base/base.h"

#include <doctest/doctest.h>

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>

#include "base/processors.h"
#include "base/trace.h"
#include "temporary.h"

using namespace trainlaunch;

namespace {

// Of a kernel that is pretended; none: of the real one.
std::vector<int> pretended;
int pretended_count = 0;  // that the kernel was built for

}  // namespace

extern "C" int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t* mask) noexcept {
  if (pretended.empty()) return syscall(SYS_sched_getaffinity, pid, bytes, mask) < 0 ? -1 : 0;
  if (bytes * 8 < static_cast<size_t>(pretended_count)) {
    errno = EINVAL;
    return -1;
  }
  CPU_ZERO_S(bytes, mask);
  for (int cpu : pretended) CPU_SET_S(static_cast<size_t>(cpu), bytes, mask);
  return 0;
}

TEST_CASE("processors count from 0 to the last that Linux can have") {
  for (const auto& [count, cpus] : std::map<int, std::vector<int>>{
           {64, {0, 63}}, {1024, {1023}}, {2048, {5, 1024, 2047}}, {8192, {1500, 8191}}}) {
    pretended = cpus;
    pretended_count = count;
    const ProcessorSet set = allowed_processors();
    CHECK(set.count() == cpus.size());
    for (int cpu : cpus) CHECK(set[static_cast<size_t>(cpu)]);
  }
  pretended.clear();
  CHECK(allowed_processors().any());
}

// Known answers of philox4x32-10, as published with the Random123 library.
TEST_CASE("philox gives its published numbers") {
  CHECK(philox(0, {0, 0, 0, 0}) == Philox{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox(~0ull, {~0u, ~0u, ~0u, ~0u}) ==
        Philox{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox(0x299f31d0a4093822ull, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}) ==
        Philox{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("an arena measures what it later hands out") {
  auto take = [](Arena& a) {
    View x = a.take("x", DType::f32, {3, 5});
    a.take("y", DType::f64, {7});
    a.take("x", DType::u8, {1});
    return x;
  };
  Arena measure = Arena::measuring();
  View x = take(measure);
  CHECK(x.p == nullptr);
  CHECK(x.size() == 15);
  CHECK(measure.used() == 64 + 64 + 64);
  CHECK(measure.items().size() == 2);

  auto host = make_host_device();
  auto arena = Arena::make(*host, measure.used());
  REQUIRE(arena);
  View real = take(*arena);
  REQUIRE(real.p != nullptr);
  CHECK(reinterpret_cast<uintptr_t>(real.p) % 64 == 0);
  CHECK(real.as<float>()[14] == 0.0f);
  CHECK_FALSE(arena->take("one too many", DType::u8, {1}));
}

TEST_CASE("views slice by elements") {
  float data[6] = {0, 1, 2, 3, 4, 5};
  View v(data, DType::f32, {2, 3});
  CHECK(v.rows() == 2);
  CHECK(v.cols() == 3);
  CHECK(v.slice(4, 2).as<float>()[1] == 5);
  CHECK(v.reshape({3, 2}).rows() == 3);
  CHECK(View().size() == 0);
}

TEST_CASE("errors carry their exit code") {
  auto f = []() -> Result<int> { return fail("no", exit_code::usage); };
  auto g = [&]() -> Status {
    auto r = f();
    if (!r) return forward(r);
    return {};
  };
  CHECK(g().error().exit == 2);
  errno = ENOENT;
  Status s = fail_errno("open x");
  CHECK(s.error().what == "open x: No such file or directory");
}

TEST_CASE("deadlines") {
  CHECK(Deadline::never().poll_ms() == -1);
  CHECK_FALSE(Deadline::never().over());
  CHECK(Deadline::in(Seconds(-1)).over());
  CHECK(Deadline::in(Seconds(-1)).poll_ms() == 0);
  CHECK(Deadline::in(Seconds(1)).poll_ms() > 900);
}

TEST_CASE("a message is one line without control characters, in any script") {
  CHECK(one_line("plain, größe, €, 😀") == "plain, größe, €, 😀");
  CHECK(one_line("a\nb\tc\rd\x1b[31m\x7f") == "a?b?c?d?[31m?");
  CHECK(one_line(std::string_view("\0", 1)) == "?");
  CHECK(one_line("\xff\xc2\x9b") == "???");  // no beginning; an 8-bit control sequence
  CHECK(one_line("cut \xe2\x82") == "cut ?");
}

TEST_CASE("words stand between blanks, and are parts of the text") {
  const std::string text = " \ta  bc\r\v\fd ";
  const auto all = words(text);
  REQUIRE(all.size() == 3);
  CHECK(all[0] == "a");
  CHECK(all[1] == "bc");
  CHECK(all[2] == "d");
  CHECK(all[1].data() == text.data() + text.find("bc"));
  CHECK(words(" \t").empty());
  CHECK(trim("\t a b \r") == "a b");
  CHECK(trim(" ").empty());
}

TEST_CASE(
    "a trace is what viewers expect: numbered rows that have names, and times from the start") {
  const Temporary folder;
  const std::string path = folder / "trace.json";
  Trace trace(3);
  const auto now = Clock::now();
  trace.span("compute", "forward \"1\"", now, now + std::chrono::microseconds(20));
  trace.span("comm", "sum", now + std::chrono::microseconds(5), now + std::chrono::microseconds(9));
  trace.span("compute", "backward", now + std::chrono::microseconds(20),
             now + std::chrono::seconds(2));
  REQUIRE(trace.write(path));
  const auto whole = nlohmann::json::parse(read_file(path), nullptr, false);
  REQUIRE_FALSE(whole.is_discarded());
  std::map<int, std::string> rows;
  std::map<std::string, std::string> row_of;
  for (const auto& e : whole["traceEvents"]) {
    REQUIRE(e["tid"].is_number_unsigned());
    CHECK(e["pid"].get<int>() == 3);
    const int row = e["tid"].get<int>();
    if (e["ph"].get<std::string>() == "M") {
      if (row > 0) rows[row] = e["args"]["name"].get<std::string>();
      continue;
    }
    CHECK(e["ph"].get<std::string>() == "X");
    CHECK(e["ts"].get<double>() >= 0);
    CHECK(e["ts"].get<double>() < 60e6);
    row_of[e["name"].get<std::string>()] = rows.at(row);
    if (e["name"].get<std::string>() == "sum") CHECK(e["dur"].get<double>() == doctest::Approx(4));
  }
  CHECK(rows.size() == 2);
  CHECK(row_of == std::map<std::string, std::string>{
                      {"forward \"1\"", "compute"}, {"sum", "comm"}, {"backward", "compute"}});
}
