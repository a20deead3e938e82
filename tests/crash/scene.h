// What a job of the matrix begins with.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <string>

#include "../unit/temporary.h"
#include "job.h"

namespace trainlaunch::crash {

// How much of the matrix is tried: every point, or one of so many (make check).
inline uint32_t stride() {
  const char* asked = std::getenv("TL_CRASH");
  return asked && std::string(asked) == "sample" ? 9 : 1;
}
inline bool everything() {
  const char* asked = std::getenv("TL_CRASH");
  return asked && std::string(asked) == "everything";
}

// Whether the point is among those that are tried; the sample moves with `phase`, so that together
// the parts of the matrix come to most points.
inline bool chosen(uint32_t point, uint32_t phase = 0) { return (point + phase) % stride() == 0; }

struct Scene {
  const char* name;
  std::vector<int> per_node;
  bool local = false;
  std::vector<uint64_t> before;  // saved by jobs of the past
  bool leftovers = false;        // of a job that was killed
  bool damaged = false;          // the newest one is
  std::vector<uint64_t> steps;   // to be saved

  int ranks() const { return std::accumulate(per_node.begin(), per_node.end(), 0); }
  // Checkpoints that may be passed over when nothing more is wrong. A node that has committed its
  // part while another was killed leaves one that nobody can use.
  size_t bad() const { return damaged || local ? 1 : 0; }
  uint64_t durable() const {
    return before.empty() ? 0 : damaged ? before.end()[-2] : before.back();
  }

  Job job(const std::string& root) const {
    Job job;
    job.root = root;
    job.per_node = per_node;
    job.local = local;
    job.steps = steps;
    return job;
  }
  // Makes what there is at the beginning.
  void make(const std::string& root) const {
    std::filesystem::create_directories(root);
    if (!before.empty()) {
      Job past = job(root);
      past.steps = before;
      past.keep = 0;
      SharedSheet sheet;
      REQUIRE(run_job(past, {}, *sheet) == End::done);
      REQUIRE(sheet->troubles() == "");
      REQUIRE(sheet->last_durable() == before.back());
    }
    if (leftovers)
      for (const char* dir : {"/run/.step-000000003.0123.tmp", "/run/.trash.0123"}) {
        std::filesystem::create_directory(root + dir);
        write_file(root + dir + "/shard-00000.safetensors", "x");
      }
    if (damaged)
      write_file(
          root + "/run/step-00000000" + std::to_string(before.back()) + "/shard-00000.safetensors",
          "x");
  }
};

// A run goes on after one that was killed; it keeps two checkpoints, so that each save removes one.
inline const Scene next{"next", {1}, false, {1, 2}, true, false, {3, 4}};
inline const Scene next_of_two{"next, two ranks", {2}, false, {1, 2}, false, false, {3, 4}};
inline const Scene next_of_three{"next, three ranks", {3}, false, {1, 2}, false, false, {3, 4}};
inline const Scene first{"first", {1}, false, {}, false, false, {1, 2}};
inline const Scene damaged{"damaged", {1}, false, {1, 2, 3}, false, true, {3, 4}};
inline const Scene on_nodes{"on nodes", {1, 1}, true, {1, 2}, false, false, {3, 4}};

// The beginning of a scene, again and again.
class Stage {
 public:
  explicit Stage(const Scene& scene) : scene_(scene) { scene.make(dir_ / "template"); }
  Job set() {
    std::filesystem::remove_all(dir_ / "now");
    std::filesystem::copy(dir_ / "template", dir_ / "now",
                          std::filesystem::copy_options::recursive);
    return scene_.job(dir_ / "now");
  }

 private:
  const Scene& scene_;
  Temporary dir_{in_memory()};
};

// The calls of each rank when nothing goes wrong.
inline std::vector<std::vector<Call>> undisturbed(const Job& job) {
  SharedSheet sheet;
  REQUIRE(run_job(job, {}, *sheet) == End::done);
  REQUIRE(sheet->troubles() == "");
  std::vector<std::vector<Call>> all;
  for (const Sheet::Rank& rank : sheet->rank) {
    REQUIRE(rank.calls < Sheet::calls);
    all.emplace_back(rank.list.begin(), rank.list.begin() + rank.calls);
  }
  return all;
}

inline std::string describe(const Scene& scene, int rank, uint32_t point, const Call& call) {
  return std::string(scene.name) + ", rank " + std::to_string(rank) + ", call " +
         std::to_string(point) + ": " + call.name.data() + " " + call.path.data();
}

// Whether a point is a call of the system.
inline bool is_call(const Call& call) { return std::string(call.name.data()) != "gather"; }

// Whether a call changes nothing on disk.
inline bool reads(const Call& call) {
  for (const char* name :
       {"open", "opendir", "list", "read", "stat", "statvfs", "access", "advise", "close", "flock"})
    if (std::string(call.name.data()) == name) return true;
  return false;
}

// Whether what is on disk is the same before this point (from 1) as before the one before it: a
// death there would be no other one.
inline bool repeats(const std::vector<Call>& calls, uint32_t point) {
  return point >= 2 && !everything() && reads(calls[point - 2]);
}

// How much was tried, for the reader of the tests' output.
class Tried {
 public:
  explicit Tried(const char* what) : what_(what) {}
  ~Tried() { std::printf("tried: %s at %d points, %d lost\n", what_, points_, lost_); }
  // A point, and what was wrong.
  void operator()(const std::string& where, const std::string& wrong) {
    ++points_;
    if (wrong.empty()) return;
    ++lost_;
    FAIL_CHECK(where << ": " << wrong);
  }
  int points() const { return points_; }

 private:
  const char* what_;
  int points_ = 0, lost_ = 0;
};

}  // namespace trainlaunch::crash
