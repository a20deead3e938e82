#include "ckpt/catalog.h"

#include <algorithm>
#include <filesystem>
#include <tuple>

namespace trainlaunch {

namespace {

constexpr uint64_t longest_reason = 4096;  // bytes

// "<name of a checkpoint>.<what>" or "... .<what>.<number>": the latter part, or nothing.
std::string_view set_aside_as(std::string_view name) {
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos || !step_of(name.substr(0, dot))) return {};
  return name.substr(dot + 1);
}

std::optional<Standing> standing_of(std::string_view name) {
  if (step_of(name)) return Standing::committed;
  if (is_temporary(name)) return Standing::unfinished;
  if (is_trash(name)) return Standing::trash;
  const std::string_view as = set_aside_as(name);
  if (as == "bad" || as.starts_with("bad.")) return Standing::bad;
  if (as == "aside" || as.starts_with("aside.")) return Standing::aside;
  return std::nullopt;
}

// The shards' sizes and the mark that all has been read back. Of a local checkpoint a node has some
// of the shards.
Status look_into(const Directory& dir, Found& found) {
  auto manifest = read_manifest(dir);
  if (!manifest) return forward(manifest);
  if (manifest->state.step != *found.step)
    return fail(dir.path_of(manifest_name) + " is of step " + std::to_string(manifest->state.step));
  for (const ShardFile& file : manifest->files) {
    if (found.level == Level::local && !dir.has(file.name)) continue;
    auto opened = dir.read(file.name);
    if (!opened) return forward(opened);
    if (opened->bytes != file.bytes)
      return fail(dir.path_of(file.name) + " has " + std::to_string(opened->bytes) +
                  " bytes instead of " + std::to_string(file.bytes));
  }
  if (dir.has(verified_name)) found.standing = Standing::verified;
  return {};
}

void examine(const Directory& parent, Found& found) {
  auto problem = [&](const Error& e) {
    if (found.standing == Standing::committed || found.standing == Standing::verified)
      found.standing = Standing::damaged;
    if (found.why.empty()) found.why = e.what;
  };
  auto dir = parent.enter(found.name);
  if (!dir) return problem(dir.error());
  if (auto measure = dir->measure()) {
    found.bytes = measure->bytes;
    found.modified = measure->modified;
  }
  if (auto manifest = dir->read(manifest_name)) found.modified = manifest->modified;
  if (found.standing == Standing::bad)
    if (auto why = dir->read_text(reason_name, longest_reason)) {
      found.why = *why;
      found.why.erase(std::min(found.why.find('\n'), found.why.size()));
    }
  if (found.standing == Standing::committed)
    if (auto s = look_into(*dir, found); !s) problem(s.error());
}

Status add_all(const Directory& dir, Level level, const std::string& node,
               std::vector<Found>& all) {
  auto names = dir.names();
  if (!names) return forward(names);
  for (const std::string& name : *names) {
    const auto standing = standing_of(name);
    if (!standing) continue;
    Found found{level, node, dir.path_of(name), name, step_in(name), *standing, "", 0, 0};
    examine(dir, found);
    // A job may have removed or renamed it while it was looked at.
    if (dir.has(name)) all.push_back(std::move(found));
  }
  return {};
}

std::filesystem::path without_slash(const std::filesystem::path& path) {
  const std::filesystem::path p = path.lexically_normal();
  return p.has_filename() ? p : p.parent_path();
}

std::string last_name(const std::string& path) { return without_slash(path).filename().string(); }

std::filesystem::path absolute(const std::string& path) {
  std::error_code unknown;
  return without_slash(std::filesystem::absolute(path, unknown));
}

// The node that a run's local directory is of; empty: it is none.
std::string node_of(const std::string& path) { return node_in(absolute(path).filename().string()); }

}  // namespace

const char* word_of(Standing standing) {
  switch (standing) {
    case Standing::verified:
      return "verified";
    case Standing::committed:
      return "committed";
    case Standing::damaged:
      return "damaged";
    case Standing::bad:
      return "bad";
    case Standing::aside:
      return "aside";
    case Standing::unfinished:
      return "unfinished";
    case Standing::trash:
      break;
  }
  return "trash";
}

Result<std::vector<LocalPlace>> local_places(const Directory& run, const std::string& local_dir) {
  std::vector<LocalPlace> places;
  if (local_dir.empty()) return places;
  auto local = Directory::open(local_dir);
  if (!local) return forward(local);
  auto names = local->names();
  if (!names) return forward(names);
  // Without an id the run has never had a local directory.
  const auto id = run.read_text(run_id_name, run_id_length);
  if (!id || !is_run_id(*id)) return places;
  for (const std::string& name : *names)
    if (name.starts_with(local_name(*id, "")))
      places.push_back({local->path_of(name), node_in(name)});
  std::sort(places.begin(), places.end(),
            [](const LocalPlace& a, const LocalPlace& b) { return a.path < b.path; });
  return places;
}

Result<std::vector<Found>> catalog(const std::string& run, const std::string& local_dir) {
  auto dir = Directory::open(run);
  if (!dir) return forward(dir);
  auto places = local_places(*dir, local_dir);
  if (!places) return forward(places);
  std::vector<Found> all;
  const std::string node = node_of(run);
  const Level level = node.empty() ? Level::shared : Level::local;
  if (auto s = add_all(*dir, level, node, all); !s) return forward(s);
  for (const LocalPlace& place : *places) {
    auto local = Directory::open(place.path);
    if (!local) return forward(local);
    if (auto s = add_all(*local, Level::local, place.node, all); !s) return forward(s);
  }
  std::sort(all.begin(), all.end(), [](const Found& a, const Found& b) {
    const auto key = [](const Found& f) {
      return std::tie(f.step, f.level, f.node, f.standing, f.name);
    };
    // What has no step comes last.
    if (a.step.has_value() != b.step.has_value()) return a.step.has_value();
    return key(a) < key(b);
  });
  return all;
}

std::optional<uint64_t> step_in(const std::string& path) {
  std::string name = last_name(path);
  if (is_temporary(name)) name.erase(0, 1);
  return step_of(name.substr(0, name.find('.')));
}

bool is_local_part(const std::string& path) {
  return !node_of(absolute(path).parent_path().string()).empty();
}

Result<Directory> find_checkpoint(const std::string& place, std::optional<uint64_t> step) {
  auto dir = Directory::open(place);
  if (!dir) return forward(dir);
  if (dir->has(manifest_name) || step_in(place)) {
    if (!step || step == step_in(place)) return dir;
    return fail(place + " is one checkpoint already, and not of step " + std::to_string(*step),
                exit_code::usage);
  }
  auto steps = list_checkpoints(place);
  if (!steps) return forward(steps);
  if (steps->empty()) return fail("no checkpoint in " + place, exit_code::usage);
  const bool there = !step || std::find(steps->begin(), steps->end(), *step) != steps->end();
  if (!there)
    return fail("no checkpoint of step " + std::to_string(*step) + " in " + place +
                    "; train-launch checkpoint list names those that are there",
                exit_code::usage);
  return dir->enter(checkpoint_name(step.value_or(steps->back())));
}

}  // namespace trainlaunch
