#include "ckpt/cleanup.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "ckpt/catalog.h"
#include "ckpt/ownership.h"
#include "ckpt/retention.h"

namespace trainlaunch {

namespace {

// Twice what the ranks of a save wait for each other.
constexpr int64_t quiet_seconds = 2 * static_cast<int64_t>(storage_timeout.count());

class Cleaning {
 public:
  Cleaning(const Directory& dir, const Hold& held, const CleanOptions& options)
      : dir_(dir), held_(held), options_(options) {}

  Result<Cleaned> go(const std::vector<Found>& found) {
    for (const Found& f : found)
      if (f.standing == Standing::trash || f.standing == Standing::unfinished ||
          (options_.set_aside && (f.standing == Standing::bad || f.standing == Standing::aside)))
        remove(f, word_of(f.standing));
    if (options_.keep)
      for (const Found* f : beyond_retention(found)) remove(*f, "beyond --keep");
    auto names = dir_.names();
    if (!names) return forward(names);
    for (const std::string& name : *names)
      if (is_scratch(name)) remove_scratch(name);
    if (!options_.dry_run && !cleaned_.removed.empty())
      if (auto s = dir_.sync(); !s) return forward(s);
    return std::move(cleaned_);
  }

 private:
  // What cannot be read is neither counted nor removed: a newer one that is bad keeps an older one.
  std::vector<const Found*> beyond_retention(const std::vector<Found>& found) const {
    std::vector<Kept> committed;
    for (const Found& f : found)
      if (f.standing == Standing::verified || f.standing == Standing::committed)
        committed.push_back({*f.step, f.standing == Standing::verified});
    const auto steps = expendable(committed, *options_.keep, options_.keep_every);
    std::vector<const Found*> beyond;
    for (const Found& f : found)
      if (f.standing == Standing::verified &&
          std::find(steps.begin(), steps.end(), *f.step) != steps.end())
        beyond.push_back(&f);
    return beyond;
  }

  void remove(const Found& f, const std::string& why) {
    // A link, or a file: not ours, whatever its name.
    if (auto inside = dir_.enter(f.name); !inside) return leave(f, inside.error().what);
    if (f.standing == Standing::unfinished)
      if (std::string stays = why_wait(f.modified); !stays.empty())
        return leave(f, std::move(stays));
    if (!options_.dry_run)
      if (auto s = dir_.remove(f.name, manifest_name); !s) return leave(f, s.error().what);
    cleaned_.removed.push_back({f.path, f.bytes, why});
  }

  // What another host's job may be writing stays, and this is why; empty: nobody is.
  std::string why_wait(int64_t modified) const {
    const int64_t quiet = std::time(nullptr) - modified;
    if (held_.sure || options_.force || quiet >= quiet_seconds) return "";
    return "changed " + std::to_string(std::max<int64_t>(quiet, 0)) +
           " s ago, and the lock may not tell of " +
           (held_.last_owner.empty() ? "another host" : held_.last_owner);
  }

  // Of Directory::write_over.
  void remove_scratch(const std::string& name) {
    auto file = dir_.read(name);
    if (!file) return cleaned_.left.push_back({dir_.path_of(name), 0, file.error().what});
    if (std::string why = why_wait(file->modified); !why.empty())
      return cleaned_.left.push_back({dir_.path_of(name), file->bytes, std::move(why)});
    if (!options_.dry_run)
      if (auto s = dir_.remove_file(name); !s)
        return cleaned_.left.push_back({dir_.path_of(name), file->bytes, s.error().what});
    cleaned_.removed.push_back({dir_.path_of(name), file->bytes, "unfinished"});
  }

  void leave(const Found& f, std::string why) {
    cleaned_.left.push_back({f.path, f.bytes, std::move(why)});
  }

  const Directory& dir_;
  const Hold& held_;
  const CleanOptions& options_;
  Cleaned cleaned_;
};

}  // namespace

Result<Cleaned> clean(const std::string& run, const CleanOptions& options) {
  auto dir = Directory::open(run);
  if (!dir) return forward(dir);
  auto held = hold(*dir, "checkpoint gc, process " + std::to_string(getpid()));
  if (!held) return forward(held);
  auto found = catalog(run, "");
  if (!found) return forward(found);
  return Cleaning(*dir, *held, options).go(*found);
}

}  // namespace trainlaunch
