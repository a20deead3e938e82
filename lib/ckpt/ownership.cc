#include "ckpt/ownership.h"

#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

#include "ckpt/manifest.h"

namespace trainlaunch {

namespace {

constexpr const char* lock_name = "run.lock";
constexpr std::string_view prefix = ".attempt-";
constexpr uint64_t longest_owner = 300;  // bytes

// The number in ".attempt-<number>.<turn>".
std::optional<uint64_t> attempt_of(std::string_view name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  uint64_t n = 0;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + prefix.size(), end, n);
  if (error != std::errc() || rest == end || *rest != '.') return std::nullopt;
  return n;
}

// What an owner wrote, for people; it may have been cut short, or be anything.
std::string owner_in(const Directory& dir, const std::string& name) {
  auto text = dir.read_text(name, longest_owner);
  std::string owner = text ? *text : "";
  owner.erase(std::find(owner.begin(), owner.end(), '\n'), owner.end());
  const bool printable =
      std::all_of(owner.begin(), owner.end(), [](char c) { return c >= ' ' && c <= '~'; });
  return owner.empty() || !printable ? "another job" : owner;
}

// For a message to others and no more: a full disk is no reason not to start. In this order there
// is a whole line at all times.
void write_owner(const Fd& file, const std::string& owner) {
  const std::string line = owner + "\n";
  if (pwrite(file.get(), line.data(), line.size(), 0) == static_cast<ssize_t>(line.size()))
    (void)!ftruncate(file.get(), static_cast<off_t>(line.size()));
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

struct Lock {
  Fd file;
  int error = 0;  // why the file system has no locks; then nobody is kept out
};

// The lock file for `owner`; the refusal of one that another holds ends with `advice`.
Result<Lock> take_lock(const Directory& dir, const std::string& owner, const std::string& advice) {
  auto file = dir.open_or_create(lock_name);
  if (!file) return forward(file);
  int locked = 0;
  do locked = flock(file->get(), LOCK_EX | LOCK_NB);
  while (locked != 0 && errno == EINTR);
  const int error = locked == 0 ? 0 : errno;
  if (error == EWOULDBLOCK)
    return fail(dir.path() + " is in use by " + owner_in(dir, lock_name) + "; " + advice);
  write_owner(*file, owner);
  return Lock{std::move(*file), error};
}

// The newest mark of an attempt; empty: there is none.
std::string newest_mark(const std::vector<std::string>& names) {
  std::string newest;
  uint64_t number = 0;
  for (const std::string& name : names)
    if (auto n = attempt_of(name); n && *n >= number) {
      number = *n;
      newest = name;
    }
  return newest;
}

}  // namespace

Result<Hold> hold(const Directory& dir, const std::string& owner) {
  if (!dir.has(lock_name))
    return fail(dir.path() + " is no run directory: it has no " + lock_name, exit_code::usage);
  auto lock = take_lock(dir, owner, "wait for it");
  if (!lock) return forward(lock);
  auto names = dir.names();
  if (!names) return forward(names);
  Hold held{std::move(lock->file), lock->error == 0, ""};
  // A lock that this host's kernel keeps is sure to tell of this host's jobs only.
  if (const std::string mark = newest_mark(*names); !mark.empty()) {
    held.last_owner = owner_in(dir, mark);
    held.sure = held.sure && held.last_owner.ends_with(" on " + host_name());
  }
  return held;
}

std::string Ownership::token(uint64_t turn) const {
  return std::string(prefix) + std::to_string(attempt_) + "." + std::to_string(turn);
}

// The newest mark there is becomes this attempt's, which takes no space on a full disk; of two that
// do it at once, one finds it gone and looks again.
Status Ownership::succeed(const Directory& dir, const std::string& owner) {
  for (int tries = 0;; ++tries) {
    auto names = dir.names();
    if (!names) return forward(names);
    const std::string newest = newest_mark(*names);
    attempt_ = std::max(attempt_, attempt_of(newest).value_or(0)) + 1;
    bool missing = false;
    const Status done =
        newest.empty() ? dir.write_new(token(0), "") : dir.rename_over(newest, token(0), &missing);
    if (!done && !(missing && tries < 10)) return done;
    if (!done) continue;
    if (auto file = dir.open_or_create(token(0))) write_owner(*file, owner);
    for (const std::string& name : *names)
      if (attempt_of(name) && name != newest)
        if (auto s = dir.remove_file(name); !s) return s;
    return dir.sync();
  }
}

Result<Ownership> Ownership::take(const Directory& dir, const std::string& owner,
                                  std::vector<std::string>& warnings) {
  Ownership mine;
  auto lock = take_lock(dir, owner, "wait for it or give another run-dir");
  if (!lock) return forward(lock);
  mine.lock_ = std::move(lock->file);
  if (lock->error != 0)
    warnings.push_back("cannot lock " + dir.path_of(lock_name) + ": " + std::strerror(lock->error) +
                       "; a second job on this directory would not be refused, it would take it "
                       "over and end this one at its next checkpoint");

  if (auto s = mine.succeed(dir, owner); !s) return forward(s);
  auto names = dir.names();
  if (!names) return forward(names);
  // After the number: whoever was about to commit one of these has lost it, whoever makes one now
  // will see that he has been succeeded.
  for (const std::string& name : *names)
    if (is_temporary(name) || is_trash(name))
      if (auto s = dir.remove(name, manifest_name); !s)
        warnings.push_back("leftovers of a save: " + s.error().what);
  return mine;
}

Status Ownership::confirm(const Directory& dir) {
  if (lost_) return fail(dir.path() + " belongs to another job now");
  // A rename may have been done although it was said to have failed, an answer of a file server
  // that was lost: then the mark is one further.
  for (uint64_t from = turn_; from <= turn_ + 1; ++from) {
    bool missing = false;
    auto s = dir.rename_over(token(from), token(from + 1), &missing);
    if (!s && missing) continue;
    if (s) turn_ = from + 1;
    return s;
  }
  lost_ = true;
  std::string successor = "another job";
  if (auto names = dir.names())
    for (const std::string& name : *names)
      if (auto n = attempt_of(name); n && *n > attempt_) successor = owner_in(dir, name);
  return fail(dir.path() + " has been taken over by " + successor);
}

}  // namespace trainlaunch
