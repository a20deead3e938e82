// What `train-launch checkpoint` says, for people and as JSON (train-launch-checkpoint(1) has the
// fields).
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/compare.h"
#include "ckpt/verify.h"

namespace trainlaunch {

std::string catalog_table(const std::vector<Found>& found);
std::string catalog_json(const std::string& run, const std::vector<Found>& found);

// `ranges`: every run of every shard, too.
std::string manifest_text(const std::string& path, const Manifest& manifest, bool ranges);
std::string manifest_json(const std::string& path, const Manifest& manifest);

struct Verified {
  std::string path;
  Verdict verdict;
};
std::string verdict_text(const Verified& verified);
std::string verdicts_json(const std::vector<Verified>& all);

std::string comparison_text(const Comparison& comparison);
std::string comparison_json(const std::string& a, const std::string& b,
                            const Comparison& comparison);

}  // namespace trainlaunch
