// What a run directory holds, for people and tools. Nothing here writes or takes a lock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/ckpt.h"
#include "ckpt/directory.h"
#include "ckpt/manifest.h"

namespace trainlaunch {

enum class Standing : uint8_t {
  verified,    // durable, and all of it has been read back once since
  committed,   // durable
  damaged,     // has a checkpoint's name, but a manifest or files that are not as they should be
  bad,         // set aside by a run that could not use it
  aside,       // set aside by a run that went on from an earlier step
  unfinished,  // a save in progress, or one that was cut short
  trash,       // on its way out
};
const char* word_of(Standing standing);

struct Found {
  Level level = Level::shared;
  std::string node;  // of a local one
  std::string path, name;
  std::optional<uint64_t> step;  // trash has none
  Standing standing = Standing::trash;
  std::string why;       // of damaged and bad ones: a line, which may hold any characters
  uint64_t bytes = 0;    // of the files in it
  int64_t modified = 0;  // of a checkpoint, when it was committed; seconds since 1970
};

// Everything in a run directory that is, was or was to be a checkpoint, by rising step, and within
// one the shared level first. `local_dir`, when not empty: the checkpoint.local-dir of the run, for
// what this host has there. `run` may also be one such place. Looks at manifests and at the sizes
// of files, not into them.
Result<std::vector<Found>> catalog(const std::string& run, const std::string& local_dir);

// The directories below `local_dir` that are this run's, with the node that each is of.
struct LocalPlace {
  std::string path, node;
};
Result<std::vector<LocalPlace>> local_places(const Directory& run, const std::string& local_dir);

// The directory of one checkpoint: `place` itself, whatever its name, when it is one; else that of
// `step` in the run directory `place`, or of the newest. There being none is a usage error.
Result<Directory> find_checkpoint(const std::string& place, std::optional<uint64_t> step);

// The step in the name of a checkpoint, also of one that was set aside.
std::optional<uint64_t> step_in(const std::string& path);
// Whether this is the path of one node's part.
bool is_local_part(const std::string& path);

}  // namespace trainlaunch
