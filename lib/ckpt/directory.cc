#include "ckpt/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <memory>

namespace trainlaunch {

namespace {

constexpr std::string_view prefix = "step-";

// A trailing slash would make open(2) follow a link in spite of O_NOFOLLOW.
std::string plain(const std::string& path) {
  std::filesystem::path p = std::filesystem::path(path).lexically_normal();
  if (!p.has_filename()) p = p.parent_path();
  return p.empty() ? "." : p.string();
}

// On NFS a handle can be stale once, when another client has replaced what a name meant.
int open_fresh(int dir, const char* name, int flags) {
  const int fd = openat(dir, name, flags);
  return fd < 0 && errno == ESTALE ? openat(dir, name, flags) : fd;
}

constexpr int directory_flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

// Makes a directory with its parents, and syncs the parent of each one made: a checkpoint is not
// durable in a directory that is not.
Status make_durable(const std::filesystem::path& path, mode_t mode) {
  int made = mkdir(path.c_str(), mode);
  if (made != 0 && errno == ENOENT && path.has_parent_path()) {
    if (auto s = make_durable(path.parent_path(), 0777); !s) return s;
    made = mkdir(path.c_str(), mode);
  }
  if (made != 0 && errno == EEXIST) return {};
  if (made != 0) return fail_errno("cannot make the directory " + path.string());
  const std::string parent = path.has_parent_path() ? path.parent_path().string() : ".";
  const Fd fd(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // A directory that may be written but not read cannot be synced.
  if (fd && fsync(fd.get()) != 0) return fail_errno("cannot sync the directory " + parent);
  return {};
}

}  // namespace

std::string checkpoint_name(uint64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < 9) digits.insert(0, 9 - digits.size(), '0');
  return std::string(prefix) + digits;
}

std::optional<uint64_t> step_of(std::string_view name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  uint64_t step = 0;
  const char* end = name.data() + name.size();
  auto [rest, error] = std::from_chars(name.data() + prefix.size(), end, step);
  if (error != std::errc() || rest != end || checkpoint_name(step) != name) return std::nullopt;
  return step;
}

// Only so that two attempts never share a name; a short read would do no harm.
std::string random_hex() {
  uint64_t random = 0;
  if (getrandom(&random, sizeof random, 0) < 0) random = static_cast<uint64_t>(getpid());
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(random));
  return text;
}

std::string temporary_name(uint64_t step) {
  return "." + checkpoint_name(step) + "." + random_hex() + ".tmp";
}

std::string trash_name() { return ".trash." + random_hex(); }

bool is_temporary(std::string_view name) {
  return name.starts_with(".step-") && name.ends_with(".tmp");
}

bool is_trash(std::string_view name) { return name.starts_with(".trash."); }

bool is_scratch(std::string_view name) {
  return name.starts_with(".run.") && name.ends_with(".tmp");
}

bool is_run_id(std::string_view text) {
  const auto hex = [](unsigned char c) { return std::isxdigit(c) != 0; };
  return text.size() == run_id_length && std::all_of(text.begin(), text.end(), hex);
}

std::string local_name(const std::string& id, const std::string& node) { return id + "." + node; }

std::string node_in(const std::string& name) {
  const bool local = name.size() > run_id_length && name[run_id_length] == '.' &&
                     is_run_id(std::string_view(name).substr(0, run_id_length));
  return local ? name.substr(run_id_length + 1) : "";
}

Result<Directory> Directory::open(const std::string& path, bool* missing) {
  const std::string name = plain(path);
  Fd fd(::open(name.c_str(), directory_flags));
  if (!fd) {
    if (missing) *missing = errno == ENOENT;
    if (errno == ENOTDIR || errno == ELOOP) {
      struct stat st;
      if (lstat(name.c_str(), &st) == 0 && S_ISLNK(st.st_mode))
        return fail(name + " is a symbolic link: give the directory itself", exit_code::usage);
      errno = ENOTDIR;
    }
    const bool mistaken = errno == ENOTDIR || errno == ENOENT;
    return fail_errno("cannot open the directory " + name,
                      mistaken ? exit_code::usage : exit_code::failed);
  }
  return Directory(std::move(fd), name);
}

Result<Directory> Directory::open_or_make(const std::string& path) {
  if (auto s = make_durable(plain(path), 0700); !s) return forward(s);
  return open(path);
}

Result<Directory> Directory::enter(const std::string& name) const {
  Fd fd(open_fresh(fd_.get(), name.c_str(), directory_flags));
  if (!fd) return fail_errno("cannot open the directory " + path_of(name));
  return Directory(std::move(fd), path_of(name));
}

Result<std::vector<std::string>> Directory::names() const {
  // A descriptor of its own: readdir moves the position that duplicates share.
  Fd own(openat(fd_.get(), ".", directory_flags));
  if (!own) return fail_errno("cannot list " + path_);
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(fdopendir(own.get()), &closedir);
  if (!dir) return fail_errno("cannot list " + path_);
  own.release();
  std::vector<std::string> all;
  for (;;) {
    errno = 0;
    const dirent* entry = readdir(dir.get());
    if (!entry) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") all.emplace_back(name);
  }
  if (errno != 0) return fail_errno("cannot list " + path_);
  return all;
}

Status Directory::make(const std::string& name) const {
  if (mkdirat(fd_.get(), name.c_str(), 0700) != 0)
    return fail_errno("cannot make the directory " + path_of(name));
  return {};
}

Result<Fd> Directory::create(const std::string& name) const {
  Fd fd(
      openat(fd_.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd) return fail_errno("cannot create " + path_of(name));
  return fd;
}

Result<Fd> Directory::open_or_create(const std::string& name) const {
  Fd fd(openat(fd_.get(), name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
               0600));
  if (!fd) return fail_errno("cannot open " + path_of(name));
  return fd;
}

Result<Directory::Opened> Directory::read(const std::string& name) const {
  Opened opened{
      Fd(open_fresh(fd_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC))};
  if (!opened.fd) return fail_errno("cannot open " + path_of(name));
  struct stat st;
  if (fstat(opened.fd.get(), &st) != 0) return fail_errno("cannot open " + path_of(name));
  if (!S_ISREG(st.st_mode)) return fail(path_of(name) + " is not a regular file");
  opened.bytes = static_cast<uint64_t>(st.st_size);
  opened.modified = st.st_mtim.tv_sec;
  return opened;
}

Result<std::string> Directory::read_text(const std::string& name, uint64_t limit) const {
  auto file = read(name);
  if (!file) return forward(file);
  if (file->bytes > limit) return fail(path_of(name) + " is too large");
  std::string text(file->bytes, '\0');
  if (auto s =
          read_fully(file->fd.get(), text.data(), text.size(), 0, "cannot read " + path_of(name));
      !s)
    return forward(s);
  return text;
}

Status Directory::write_new(const std::string& name, std::string_view text) const {
  const std::string what = "cannot write " + path_of(name);
  auto file = create(name);
  if (!file) return forward(file);
  if (auto s = write_fully(file->get(), text.data(), text.size(), what); !s) return s;
  if (fsync(file->get()) != 0) return fail_errno(what);
  return file->close(what);
}

Status Directory::write_over(const std::string& name, std::string_view text) const {
  const std::string scratch = "." + name + ".tmp";
  if (unlinkat(fd_.get(), scratch.c_str(), 0) != 0 && errno != ENOENT)
    return fail_errno("cannot remove " + path_of(scratch));
  if (auto s = write_new(scratch, text); !s) return s;
  if (auto s = rename_over(scratch, name); !s) return s;
  return sync();
}

bool Directory::has(const std::string& name) const {
  return faccessat(fd_.get(), name.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

Result<Directory::Measure> Directory::measure() const {
  auto all = names();
  if (!all) return forward(all);
  struct stat st;
  if (fstat(fd_.get(), &st) != 0) return fail_errno("cannot look at " + path_);
  Measure measure{0, st.st_mtim.tv_sec};
  for (const std::string& name : *all) {
    if (fstatat(fd_.get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT) continue;  // removed meanwhile
      return fail_errno("cannot look at " + path_of(name));
    }
    if (S_ISREG(st.st_mode)) measure.bytes += static_cast<uint64_t>(st.st_size);
    measure.modified = std::max<int64_t>(measure.modified, st.st_mtim.tv_sec);
  }
  return measure;
}

Status Directory::rename_new(const std::string& from, const std::string& to, bool* taken) const {
  int done = renameat2(fd_.get(), from.c_str(), fd_.get(), to.c_str(), RENAME_NOREPLACE);
  // Some network file systems know no flags. Between these two calls another process could make
  // the name, but rename(2) replaces no directory that has something in it.
  if (done != 0 && (errno == EINVAL || errno == ENOSYS)) {
    if (faccessat(fd_.get(), to.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0)
      errno = EEXIST;
    else
      done = renameat(fd_.get(), from.c_str(), fd_.get(), to.c_str());
  }
  if (taken) *taken = done != 0 && (errno == EEXIST || errno == ENOTEMPTY);
  if (done != 0) return fail_errno("cannot rename " + path_of(from) + " to " + to);
  return {};
}

Status Directory::rename_over(const std::string& from, const std::string& to, bool* missing) const {
  const int done = renameat(fd_.get(), from.c_str(), fd_.get(), to.c_str());
  if (missing) *missing = done != 0 && errno == ENOENT;
  if (done != 0) return fail_errno("cannot rename " + path_of(from) + " to " + to);
  return {};
}

Status Directory::remove_file(const std::string& name) const {
  if (unlinkat(fd_.get(), name.c_str(), 0) != 0 && errno != ENOENT)
    return fail_errno("cannot remove " + path_of(name));
  return {};
}

Status Directory::remove(const std::string& name, const std::string& first) const {
  if (is_trash(name)) return empty(name, first);
  const std::string trash = trash_name();
  if (auto s = rename_new(name, trash); !s) return s;
  if (auto s = sync(); !s) return s;
  return empty(trash, first);
}

Status Directory::empty(const std::string& name, const std::string& first) const {
  auto inside = enter(name);
  if (!inside) return forward(inside);
  auto all = inside->names();
  if (!all) return forward(all);
  if (auto s = inside->remove_file(first); !s) return s;
  for (const std::string& file : *all)
    if (auto s = inside->remove_file(file); !s) return s;
  if (unlinkat(fd_.get(), name.c_str(), AT_REMOVEDIR) != 0)
    return fail_errno("cannot remove " + path_of(name));
  return {};
}

Status Directory::sync() const {
  if (fsync(fd_.get()) != 0) return fail_errno("cannot sync the directory " + path_);
  return {};
}

Result<Directory::Space> Directory::space() const {
  struct statvfs fs;
  if (fstatvfs(fd_.get(), &fs) != 0) return fail_errno("cannot ask for free space in " + path_);
  const bool counted = fs.f_files > 0;
  return Space{uint64_t{fs.f_bavail} * fs.f_frsize, counted ? uint64_t{fs.f_favail} : UINT64_MAX};
}

Status preallocate(int fd, uint64_t bytes, const std::string& what) {
  int done = 0;
  do done = fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  while (done != 0 && errno == EINTR);
  if (done != 0 && errno != EOPNOTSUPP && errno != ENOSYS) return fail_errno(what);
  return {};
}

}  // namespace trainlaunch
