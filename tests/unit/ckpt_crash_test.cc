// Saves that are cut short or cannot be written.
#include <doctest/doctest.h>
#include <signal.h>

#include "ckpt_testing.h"

using namespace trainlaunch;

namespace {

// The program beside this one, which saves and resumes.
std::string probe() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "ckpt_probe";
}

// Runs a save of step 2 in another process, in which the n-th call of a kind is made to fail or to
// kill; strace then ends the same way. `reached`: there was an n-th call.
int save_under_strace(const std::string& run, const std::string& call, const std::string& what,
                      int n, bool& reached) {
  const std::string log = run + "/../strace";
  const int status = spawn({"strace", "-f", "-qq", "-o", log, "-e", "trace=" + call, "-e",
                            "inject=" + call + ":" + what + ":when=" + std::to_string(n), probe(),
                            "save", run, "2", "2"});
  reached = status < 0 || read_file(log).find("(INJECTED)") != std::string::npos;
  return status;
}

}  // namespace

TEST_CASE("kill -9 at any call of a save leaves the older checkpoint or both") {
  if (!strace_works()) return;
  int killed = 0;
  for (const char* call :
       {"mkdirat", "openat", "write", "fsync", "close", "renameat", "renameat2", "unlinkat"}) {
    for (int n = 1;; ++n) {
      REQUIRE(n < 1000);
      Temporary dir;
      REQUIRE(save(dir / "run", 1));
      bool reached = false;
      const int status = save_under_strace(dir / "run", call, "signal=KILL", n, reached);
      auto steps = list_checkpoints(dir / "run");
      REQUIRE(steps);
      REQUIRE(!steps->empty());
      CHECK(load(dir / "run", steps->back()) == "");
      if (!reached) {
        CHECK(status == 0);
        CHECK(steps->back() == 2);
        break;
      }
      CHECK(status == -SIGKILL);
      ++killed;
      // The next attempt cleans up.
      REQUIRE(save(dir / "run", 3));
      CHECK(litter(dir / "run").empty());
    }
  }
  CHECK(killed > 15);
}

TEST_CASE("a call that fails is reported and leaves nothing behind") {
  if (!strace_works()) return;
  int failed = 0;
  for (const char* call :
       {"mkdirat", "write", "fsync", "close", "renameat", "renameat2", "fallocate", "fstatfs"}) {
    const std::string error = call == std::string("write") ? "error=ENOSPC" : "error=EIO";
    bool reached = true;
    for (int n = 1; reached; ++n) {
      REQUIRE(n < 1000);
      Temporary dir;
      REQUIRE(save(dir / "run", 1));
      const int status = save_under_strace(dir / "run", call, error, n, reached);
      if (status == 127) continue;  // the loader of the program was hit
      if (status == 0) {            // a call whose result is of no consequence
        CHECK(load(dir / "run", 2) == "");
        continue;
      }
      CHECK((status == 2 || status == 3));  // of opening, of the save
      ++failed;
      const auto steps = *list_checkpoints(dir / "run");
      CHECK(steps.front() == 1);
      CHECK(litter(dir / "run").empty());
      CHECK(load(dir / "run", steps.size()) == "");
    }
  }
  CHECK(failed > 10);
}

TEST_CASE("a full disk is said before and leaves the older checkpoint") {
  Temporary dir;
  const SmallDisk disk(dir / "disk", "size=1200k,nr_inodes=8");
  if (!disk) return;
  auto first = save(disk / "run", 1);
  auto second = save(disk / "run", 2);
  const auto steps = list_checkpoints(disk / "run");
  const auto left = litter(disk / "run");
  const std::string loaded = load(disk / "run", 1);
  REQUIRE(first);
  REQUIRE(!second);
  CHECK(second.error().what.find("step 2") != std::string::npos);
  CHECK(second.error().what.find("room for 0 more files") != std::string::npos);
  CHECK(*steps == std::vector<uint64_t>{1});
  CHECK(left.empty());
  CHECK(loaded == "");
}
