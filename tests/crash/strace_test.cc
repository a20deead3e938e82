// The kernel's view of the same: no call escapes the points that faults.cc knows, and a kill that
// comes from outside does what one of its own does.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "scene.h"
#include "spawn.h"

using namespace trainlaunch;
using namespace trainlaunch::crash;

namespace {

// A job of one rank that strace watches from its first save on.
End run_traced(const Job& job, Sheet& sheet, const std::vector<std::string>& how) {
  Running running(job, {}, sheet);
  std::vector<std::string> words{"strace", "-f", "-qq", "-p", std::to_string(running.pid(0))};
  words.insert(words.end(), how.begin(), how.end());
  if (spawn(words) == 127) return End::hung;
  return running.wait();
}

// What strace calls what changes something, and what faults.cc does. (sync_file_range is advice.)
const std::map<std::string, std::string> names{{"mkdir", "mkdir"},
                                               {"mkdirat", "mkdir"},
                                               {"creat", "create"},
                                               {"write", "write"},
                                               {"pwrite64", "write"},
                                               {"writev", "write"},
                                               {"pwritev", "write"},
                                               {"fsync", "fsync"},
                                               {"fdatasync", "fsync"},
                                               {"rename", "rename"},
                                               {"renameat", "rename"},
                                               {"renameat2", "rename"},
                                               {"unlink", "unlink"},
                                               {"unlinkat", "unlink"},
                                               {"rmdir", "unlink"},
                                               {"ftruncate", "truncate"},
                                               {"truncate", "truncate"},
                                               {"fallocate", "allocate"},
                                               {"link", "link"},
                                               {"linkat", "link"},
                                               {"symlinkat", "link"},
                                               {"fchmod", "chmod"},
                                               {"fchmodat", "chmod"},
                                               {"fsetxattr", "xattr"},
                                               {"copy_file_range", "write"},
                                               {"sendfile", "write"}};

// Changes to `root`, by kind, in strace's log, from the job's first save on: it raises SIGURG
// there. strace may have been attached before.
std::map<std::string, int> changes_in(const std::string& log, const std::string& root) {
  std::map<std::string, int> all;
  const size_t begins = log.find("--- SIGURG");
  if (begins == std::string::npos) return all;
  std::istringstream lines(log.substr(begins));
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find_first_not_of("0123456789 "), paren = line.find('(');
    if (paren == std::string::npos || begin > paren || line.find(root) == std::string::npos)
      continue;
    const std::string call = line.substr(begin, paren - begin);
    if (call == "openat" && line.find("O_CREAT") != std::string::npos) ++all["create"];
    if (auto known = names.find(call); known != names.end()) ++all[known->second];
  }
  return all;
}

std::string text_of(const std::map<std::string, int>& counts) {
  std::string text;
  for (const auto& [call, count] : counts) text += call + " " + std::to_string(count) + "  ";
  return text;
}

}  // namespace

TEST_CASE("no call that changes a run directory escapes the matrix") {
  if (!strace_works()) return;
  Stage stage(next);
  Job job = stage.set();
  job.wait_for_tracer = true;
  SharedSheet sheet;
  const std::string log = job.root + ".strace";
  REQUIRE(run_traced(job, *sheet, {"-y", "-o", log, "-e", "trace=%file,%desc"}) == End::done);
  std::map<std::string, int> known;
  bool saving = false;
  for (const Call& call : sheet->all_calls()) {
    const std::string name = call.name.data();
    const bool changes = name == "create" || std::any_of(names.begin(), names.end(),
                                                         [&](auto& n) { return n.second == name; });
    if (saving && changes) ++known[name];
    saving = saving || name == "started";
  }
  CHECK(known.size() >= 7);
  CHECK(text_of(changes_in(read_file(log), job.root)) == text_of(known));
}

TEST_CASE("kill -9 by strace at any call of a save loses nothing") {
  if (!strace_works()) return;
  Stage stage(next);
  Tried tried("kill -9 by strace");
  for (const char* call : {"mkdirat", "openat", "fallocate", "write", "fsync", "close", "renameat",
                           "renameat2", "faccessat2", "pread64", "getdents64", "unlinkat"}) {
    for (uint32_t n = 1;; ++n) {
      if (!chosen(n, static_cast<uint32_t>(tried.points()))) {
        if (n < 100) continue;
        break;
      }
      REQUIRE(n < 1000);
      Job job = stage.set();
      job.wait_for_tracer = true;
      SharedSheet sheet;
      const End end =
          run_traced(job, *sheet,
                     {"-o", "/dev/null", "-e", std::string("trace=") + call, "-e",
                      std::string("inject=") + call + ":signal=KILL:when=" + std::to_string(n)});
      const std::string wrong =
          judge(job, std::max(next.durable(), sheet->last_durable()), {1}, next.bad());
      tried(std::string(call) + " " + std::to_string(n), wrong);
      if (end != End::killed) {
        CHECK(end == End::done);
        CHECK(sheet->last_durable() == 4);
        break;
      }
    }
  }
}
