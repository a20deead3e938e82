// The text form of a checkpoint's manifest, and what makes one acceptable.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/ckpt.h"
#include "ckpt/directory.h"

namespace trainlaunch {

inline constexpr const char* manifest_name = "MANIFEST.json";
inline constexpr const char* verified_name = "VERIFIED";
inline constexpr const char* reason_name = "WHY";  // of one that cannot be used
inline constexpr uint64_t manifest_format = 2;
inline constexpr uint64_t manifest_limit = uint64_t{256} << 20;  // bytes; more is not read

// A run of a tensor: elements [offset, offset + length) lie at byte `position` of a file.
struct Run {
  std::string tensor, slot;
  int64_t offset = 0, length = 0;
  uint64_t file = 0, position = 0;
};

struct ShardFile {
  std::string name;
  uint64_t bytes = 0, chunk = 0;
  std::vector<std::string> digests;  // of each chunk; the last one may be shorter
};

struct Manifest {
  State state;
  TensorSizes tensors;
  std::vector<ShardFile> files;
  std::vector<Run> runs;
  std::string digest;  // filled by parse_manifest
};

std::string shard_name(int rank);

// XXH3-128 of a text.
std::string digest_of(std::string_view text);

std::string write_manifest(const Manifest& manifest);
// Of a text that is that of a manifest.
std::string manifest_digest(std::string_view text);
// Refuses text whose digest is wrong, whose parts do not fit together, or whose runs do not cover
// the tensors. Sizes are still to be compared with the files. `what` begins each error.
Result<Manifest> parse_manifest(std::string_view text, const std::string& what);

// That of a checkpoint's directory.
Result<Manifest> read_manifest(const Directory& checkpoint);

// Every slot that occurs covers every tensor exactly once.
Status check_cover(const std::vector<Run>& runs, const TensorSizes& tensors);

}  // namespace trainlaunch
