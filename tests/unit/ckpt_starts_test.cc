// A run that never comes any further is not started for ever.
#include <doctest/doctest.h>

#include "ckpt_testing.h"

using namespace trainlaunch;

TEST_CASE("starts from one step with one configuration are counted") {
  Temporary dir;
  const std::string run = dir / "run";
  auto count = [&](uint64_t step, const std::string& config) {
    int n = 0;
    Team(1).run([&](Control& control) {
      auto writer = open_writer(run, control);
      REQUIRE(writer);
      n = (*writer)->count_start(step, config).value_or(-1);
    });
    return n;
  };
  CHECK(count(0, "a") == 1);
  CHECK(count(0, "a") == 2);
  CHECK(count(0, "b") == 1);  // somebody has mended something
  CHECK(count(0, "b") == 2);
  CHECK(count(5, "b") == 1);  // progress
  CHECK(count(5, "b") == 2);
  for (const char* text : {"", "{", "[]", "{\"step\": 5, \"config\": \"b\", \"starts\": \"x\"}"}) {
    write_file(run + "/run.starts", text);
    CHECK(count(5, "b") == 1);
  }
  write_file(run + "/run.starts", "{\"step\": 5, \"config\": \"b\", \"starts\": -3}");
  CHECK(count(5, "b") == 1);
}
