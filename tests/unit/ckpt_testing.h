// What the tests of checkpoints share.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt_saves.h"
#include "team.h"
#include "temporary.h"

namespace trainlaunch {

inline Result<std::unique_ptr<Writer>> open_writer(const std::string& run, Control& control,
                                                   const SaveOptions& options = {}) {
  return Writer::open(run, options, control);
}

// One checkpoint by a writer of its own.
inline Status save(const std::string& run, uint64_t step, int ranks = 1) {
  Status result;
  Team(ranks).run([&](Control& control) {
    auto writer = open_writer(run, control, {0, 0, 0, true});
    Status s = writer ? save_known(**writer, control.world(), step) : forward(writer);
    if (control.world().rank == 0) result = s;
  });
  return result;
}

// What is wrong with the checkpoint that a world of one would take; empty when it is `step`.
inline std::string load(const std::string& run, uint64_t step,
                        std::vector<std::string>* passed_over = nullptr) {
  std::string problem;
  Team(1).run([&](Control& control) {
    auto agreed = agree(run, std::nullopt, control);
    if (!agreed) return void(problem = agreed.error().what);
    if (passed_over)
      for (const PassedOver& p : agreed->passed_over) passed_over->push_back(p.why);
    if (!agreed->reader) return void(problem = "there is none");
    problem = compare_known(*agreed->reader, control.world(), step);
  });
  return problem;
}

inline std::string step_path(const std::string& run, uint64_t step) {
  return run + "/step-00000000" + std::to_string(step);
}
inline std::string shard(const std::string& run, uint64_t step, int rank) {
  return step_path(run, step) + "/" + shard_name(rank);
}
inline std::string manifest(const std::string& run, uint64_t step) {
  return step_path(run, step) + "/MANIFEST.json";
}

}  // namespace trainlaunch
