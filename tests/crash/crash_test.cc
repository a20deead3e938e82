// Whatever happens to a save, what was reported durable is there.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <cerrno>
#include <cstring>

#include "ckpt/manifest.h"
#include "order.h"
#include "scene.h"

using namespace trainlaunch;
using namespace trainlaunch::crash;

namespace {

// Kills each rank at each of its points.
void kill_everywhere(Tried& tried, const Scene& scene, const std::vector<int>& resumers) {
  Stage stage(scene);
  const auto calls = undisturbed(stage.set());
  for (int rank = 0; rank < scene.ranks(); ++rank) {
    const auto& list = calls[static_cast<size_t>(rank)];
    for (uint32_t at = 1; at <= list.size(); ++at) {
      if (!chosen(at, static_cast<uint32_t>(rank)) || repeats(list, at)) continue;
      const Job job = stage.set();
      SharedSheet sheet;
      const End end = run_job(job, {Effect::kill, rank, at, 0}, *sheet);
      std::string wrong;
      if (end != End::killed) wrong = "no rank was killed, or another one fell";
      if (wrong.empty()) wrong = clean_up(job);
      if (wrong.empty())
        wrong = judge(job, std::max(scene.durable(), sheet->last_durable()), resumers, scene.bad());
      tried(describe(scene, rank, at, list[at - 1]), wrong);
    }
  }
}

// What is wrong with a job that met an error and has gone on.
std::string after_error(const Scene& scene, const Job& job, const Sheet& sheet, End end) {
  if (end != End::done) return end == End::hung ? "the job hangs" : "the job died";
  const uint64_t last = scene.steps.back();
  for (int r = 1; r < scene.ranks(); ++r)
    for (uint64_t step : scene.steps)
      if (!scene.local &&
          sheet.rank[static_cast<size_t>(r)].saved[step] != sheet.rank[0].saved[step])
        return "the ranks do not agree on step " + std::to_string(step);
  const bool began = sheet.troubles().empty();
  if (began && sheet.rank[0].saved[last] == Sheet::unknown) return "nothing is said of a save";
  int failed = 0;
  for (uint64_t step : scene.steps) failed += sheet.rank[0].saved[step] == Sheet::failed;
  if (failed > 1) return "one error fails two saves";
  return judge(job, std::max(scene.durable(), sheet.last_durable()), scene.per_node, scene.bad());
}

bool for_writers(int error) { return error == ENOSPC || error == EDQUOT || error == EROFS; }

void fail_everywhere(Tried& tried, const Scene& scene, Effect effect, int error, uint32_t phase) {
  Stage stage(scene);
  const auto calls = undisturbed(stage.set());
  for (int rank = 0; rank < scene.ranks(); ++rank) {
    const auto& list = calls[static_cast<size_t>(rank)];
    for (uint32_t at = 1; at <= list.size(); ++at) {
      if (!is_call(list[at - 1]) || !chosen(at, phase)) continue;
      if (!everything() && for_writers(error) && reads(list[at - 1])) continue;
      const Job job = stage.set();
      SharedSheet sheet;
      const End end = run_job(job, {effect, rank, at, error}, *sheet);
      CHECK(sheet->rank[static_cast<size_t>(rank)].reached);
      std::string wrong = after_error(scene, job, *sheet, end);
      if (!wrong.empty()) wrong += " [" + sheet->troubles() + "]";
      tried(describe(scene, rank, at, list[at - 1]) + ", " + strerrorname_np(error) +
                (effect == Effect::done_and_fail ? " although done" : ""),
            wrong);
    }
  }
}

}  // namespace

TEST_CASE("kill -9 at any call loses nothing") {
  Tried tried("kill -9");
  kill_everywhere(tried, next, {1});
  kill_everywhere(tried, first, {1});
  kill_everywhere(tried, damaged, {1});
  if (everything()) kill_everywhere(tried, next, {2});
}

TEST_CASE("kill -9 of any rank at any call, and between any two votes, loses nothing") {
  Tried tried("kill -9 of one of several ranks");
  kill_everywhere(tried, next_of_two, {1});
  kill_everywhere(tried, next_of_three, {2});
  kill_everywhere(tried, on_nodes, {1, 1});
}

TEST_CASE("any call may fail once: it is said, training goes on, the next save works") {
  Tried tried("an error of a call");
  uint32_t phase = 0;
  for (int error : {EIO, ENOSPC, EDQUOT, ESTALE, EINTR, EROFS}) {
    fail_everywhere(tried, next, Effect::fail, error, phase++);
    if (error == EIO || everything())
      fail_everywhere(tried, next_of_two, Effect::fail, error, phase++);
    if (error == EIO || everything())
      fail_everywhere(tried, on_nodes, Effect::fail, error, phase++);
    if (error == EIO || everything()) fail_everywhere(tried, damaged, Effect::fail, error, phase++);
    if (error == ENOSPC || everything())
      fail_everywhere(tried, first, Effect::fail, error, phase++);
  }
}

TEST_CASE("a call may be done and yet be said to have failed") {
  Tried tried("an error of a call that was done");
  uint32_t phase = 0;
  for (int error : {EIO, ESTALE}) {
    fail_everywhere(tried, next, Effect::done_and_fail, error, phase++);
    if (everything()) fail_everywhere(tried, next_of_two, Effect::done_and_fail, error, phase++);
  }
}

TEST_CASE("short writes and reads change nothing") {
  Stage stage(next);
  const auto calls = undisturbed(stage.set());
  Tried tried("short writes and reads");
  for (uint32_t at = 1; at <= calls[0].size(); ++at) {
    const std::string name = calls[0][at - 1].name.data();
    if (name != "write" && name != "read") continue;
    const Job job = stage.set();
    SharedSheet sheet;
    std::string wrong;
    if (run_job(job, {Effect::shorten, 0, at, 0}, *sheet) != End::done) wrong = "the job died";
    wrong += sheet->troubles();
    for (uint64_t step : next.steps)
      if (sheet->rank[0].saved[step] != Sheet::durable) wrong += "a save failed";
    if (wrong.empty()) wrong = judge(job, next.steps.back(), {1}, 0);
    tried(describe(next, 0, at, calls[0][at - 1]), wrong);
  }
  CHECK(tried.points() > 8);
}

// From some call on the disk has no room, for real.
TEST_CASE("a disk that becomes full at any call costs a save and nothing else") {
  Temporary dir;
  const SmallDisk disk(dir / "disk", "size=8m,nr_inodes=60");
  if (!disk) return;
  const std::string root = disk / "now";
  auto again = [&] {
    std::filesystem::remove_all(root);
    next.make(root);
    return next.job(root);
  };
  const auto calls = undisturbed(again());
  Tried tried("a full disk");
  for (Effect effect : {Effect::fill, Effect::fill_files}) {
    for (uint32_t at = 1; at <= calls[0].size(); ++at) {
      if (!chosen(at, static_cast<uint32_t>(effect)) || repeats(calls[0], at)) continue;
      const Job job = again();
      SharedSheet sheet;
      const End end = run_job(job, {effect, 0, at, 0}, *sheet);
      std::string wrong = end == End::done ? "" : "the job died";
      for (const auto& entry : std::filesystem::directory_iterator(root))
        if (entry.path().filename().string().starts_with("filler.")) std::filesystem::remove(entry);
      if (wrong.empty())
        wrong = judge(job, std::max(next.durable(), sheet->last_durable()), {1}, 0);
      tried(describe(next, 0, at, calls[0][at - 1]), wrong);
    }
  }
}

TEST_CASE("a limit on the size of files fails saves and kills nothing") {
  Stage stage(next);
  for (rlim_t limit : {500, 40'000}) {
    Job job = stage.set();
    job.largest_file = limit;
    SharedSheet sheet;
    CHECK(run_job(job, {}, *sheet) == End::done);
    for (uint64_t step : next.steps) CHECK(sheet->rank[0].saved[step] != Sheet::durable);
    CHECK(judge(job, 2, {1}, 0) == "");
  }
}

TEST_CASE("every name and every byte is on disk before what needs it") {
  for (const Scene& scene : {next, next_of_two, first, damaged, on_nodes}) {
    Stage stage(scene);
    SharedSheet sheet;
    REQUIRE(run_job(stage.set(), {}, *sheet) == End::done);
    for (const std::string& fault : Order::faults_in(sheet->all_calls()))
      FAIL_CHECK(std::string(scene.name) << ": " << fault);
  }
}

namespace {

// The number of the first call of a kind on a path that ends so, after a point.
uint32_t find_call(const std::vector<Call>& calls, const std::string& name, const std::string& end,
                   uint32_t after = 0) {
  for (uint32_t at = after; at < calls.size(); ++at)
    if (name == calls[at].name.data() && std::string(calls[at].path.data()).ends_with(end))
      return at + 1;
  FAIL("there is no " << name << " of " << end);
  return 0;
}

// When a rank began to write its shard, and when it had closed it.
struct Span {
  uint32_t begin = 0, end = 0;
};
Span writing(const Sheet& sheet, int rank) {
  const auto& list = sheet.rank[static_cast<size_t>(rank)].list;
  const std::vector<Call> calls(list.begin(), list.end());
  const std::string name = "/" + shard_name(rank);
  const uint32_t begin = find_call(calls, "create", name);
  return {calls[begin - 1].order, calls[find_call(calls, "close", name, begin) - 1].order};
}

}  // namespace

TEST_CASE("a checkpoint that one rank cannot read back is not called verified") {
  Stage stage(next_of_two);
  const auto calls = undisturbed(stage.set());
  const uint32_t at = find_call(calls[1], "read", "step-000000003/shard-00001.safetensors");
  const Job job = stage.set();
  SharedSheet sheet;
  REQUIRE(run_job(job, {Effect::fail, 1, at, EIO}, *sheet) == End::done);
  CHECK(sheet->last_durable() == 4);
  CHECK(!std::filesystem::exists(job.run() + "/step-000000003/VERIFIED"));
  CHECK(std::filesystem::exists(job.run() + "/step-000000004/VERIFIED"));
}

TEST_CASE("no rank goes on before the last of them has done its part of a save") {
  Stage stage(next_of_two);
  Job job = stage.set();
  job.steps = {3};
  const auto calls = undisturbed(job);
  const uint32_t commit = find_call(calls[0], "rename", ".attempt-2.0");
  const uint32_t at = find_call(calls[0], "unlink", "/shard-00001.safetensors", commit);
  job = stage.set();
  job.steps = {3};
  SharedSheet sheet;
  REQUIRE(run_job(job, {Effect::pause, 0, at, 0}, *sheet) == End::done);
  CHECK(sheet->rank[1].heard);
}

TEST_CASE("no more ranks of a node write at a time than may") {
  Stage stage(next_of_three);
  Job job = stage.set();
  job.writers = 2;
  const auto calls = undisturbed(job);
  const uint32_t at = find_call(calls[0], "fsync", "/shard-00000.safetensors");
  job = stage.set();
  job.writers = 2;
  SharedSheet sheet;
  REQUIRE(run_job(job, {Effect::pause, 0, at, 0}, *sheet) == End::done);
  for (int rank : {0, 1}) CHECK(writing(*sheet, rank).end < writing(*sheet, 2).begin);
}

TEST_CASE("what gc removed is removed from the disk") {
  Stage stage(next);
  const Job job = stage.set();
  SharedSheet sheet;
  arm(*sheet, 0, job.root, {});
  CHECK(clean_up(job) == "");
  note("cleaned", "");
  disarm();
  CHECK(Order::faults_in(sheet->all_calls()) == std::vector<std::string>{});
}

// Quotas and file servers say it as late as at close(2).
TEST_CASE("whatever call that writes a checkpoint fails, the save has failed") {
  Stage stage(next);
  const auto calls = undisturbed(stage.set());
  int tried = 0;
  for (uint32_t at = 1; at <= calls[0].size(); ++at) {
    const Call& call = calls[0][at - 1];
    const std::string path = call.path.data(), name = call.name.data();
    const bool writes = path.find(".step-000000003.") != std::string::npos &&
                        (!reads(call) || (name == "close" && !path.ends_with(".tmp"))) &&
                        name != "unlink";
    // What a job of the past has left is removed at the start.
    if (!writes || path.find(".0123.") != std::string::npos) continue;
    SharedSheet sheet;
    REQUIRE(run_job(stage.set(), {Effect::fail, 0, at, EDQUOT}, *sheet) == End::done);
    if (sheet->rank[0].saved[3] != Sheet::failed) FAIL_CHECK(describe(next, 0, at, call));
    CHECK(sheet->rank[0].saved[4] == Sheet::durable);
    ++tried;
  }
  CHECK(tried >= 11);
}
