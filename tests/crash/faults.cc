#include "faults.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

extern "C" {
int __real_open(const char*, int, ...);
int __real_openat(int, const char*, int, ...);
int __real_close(int);
ssize_t __real_write(int, const void*, size_t);
}

namespace trainlaunch::crash {

namespace {

// One per process: what the linker puts in the way of a call has no other place for it.
struct Armed {
  Sheet* sheet = nullptr;
  int rank = 0;
  std::string root;  // with a slash at the end
  Fault fault;
} armed;

template <size_t N>
void copy(std::array<char, N>& to, const std::string& from) {
  std::snprintf(to.data(), N, "%s", from.c_str());
}

// Where a descriptor leads; "" when nowhere.
std::string path_of(int fd) {
  char name[40], target[512];
  std::snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(name, target, sizeof target);
  return n > 0 ? std::string(target, static_cast<size_t>(n)) : "";
}

std::string joined(int dir, const char* name) {
  if (name[0] == '/') return name;
  const std::string base = dir == AT_FDCWD ? "" : path_of(dir);
  return std::string(name) == "." ? base : base + "/" + name;
}

bool watched(const std::string& path) {
  return armed.sheet && (path + "/").compare(0, armed.root.size(), armed.root) == 0;
}

std::string below_root(const std::string& path) {
  return path.size() > armed.root.size() ? path.substr(armed.root.size()) : "";
}

Sheet::Rank& mine() { return armed.sheet->rank[static_cast<size_t>(armed.rank)]; }

[[noreturn]] void die() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

// What was decided before this point has been reported by the thread that does: unless it is this
// one, two more of its rounds are waited for.
void let_reports_out() {
  if (gettid() == getpid()) return;
  const uint32_t seen = mine().polls;
  for (int tries = 0; mine().polls < seen + 2 && !mine().quiet && tries < 5000; ++tries)
    usleep(100);
}

// EXT4_IOC_SHUTDOWN, and the way of it that writes nothing more, not even the journal.
void cut_power() {
  const int fd = __real_open(armed.root.c_str(), O_RDONLY | O_DIRECTORY);
  uint32_t without_log = 2;
  if (ioctl(fd, _IOR('X', 125, uint32_t), &without_log) != 0) std::perror("cut_power");
}

void fill_disk(bool files) {
  for (int n = 0; n < 10000; ++n) {
    const std::string name = armed.root + "filler." + std::to_string(n);
    const int fd = __real_open(name.c_str(), O_CREAT | O_WRONLY, 0600);
    if (fd < 0) return;
    if (!files) {
      for (off_t at = 0, size = 1 << 20; size >= 4096;) {
        if (posix_fallocate(fd, at, size) == 0)
          at += size;
        else
          size /= 2;
      }
    }
    __real_close(fd);
    if (!files) return;
  }
}

void record(Call& call, const char* name, const std::string& path, const std::string& to) {
  copy(call.name, name);
  copy(call.path, below_root(path));
  copy(call.to, below_root(to));
  call.rank = armed.rank;
  call.order = ++armed.sheet->order;
}

// The next call of this rank: it is written down, and what is left of the fault is for the caller.
Effect arrive(const char* name, const std::string& path, const std::string& to, Call*& call) {
  const uint32_t n = ++mine().calls;
  call = &mine().list[std::min<uint32_t>(n, Sheet::calls) - 1];
  record(*call, name, path, to);
  const Fault& fault = armed.fault;
  if (n != fault.at || fault.rank != armed.rank) return Effect::none;
  if (fault.effect == Effect::kill || fault.effect == Effect::power) let_reports_out();
  mine().reached = true;
  switch (fault.effect) {
    case Effect::power:
      cut_power();
      die();
    case Effect::kill:
      die();
    case Effect::fill:
    case Effect::fill_files:
      fill_disk(fault.effect == Effect::fill_files);
      return Effect::none;
    case Effect::pause:
      usleep(50'000);
      armed.sheet->told = true;
      return Effect::none;
    default:
      return fault.effect;
  }
}

// Makes the call, or does not. Those that return -1 when they fail.
template <class Real>
auto intercept(const char* name, const std::string& path, const std::string& to, Real real)
    -> decltype(real()) {
  if (!watched(path)) return real();
  Call* call = nullptr;
  const Effect effect = arrive(name, path, to, call);
  auto result = effect == Effect::fail ? -1 : real();
  if (effect == Effect::done_and_fail) result = -1;
  if (effect == Effect::fail || effect == Effect::done_and_fail) errno = armed.fault.error;
  // A call that was made changes the disk, whatever it says.
  call->failed = result < 0 && effect != Effect::done_and_fail;
  return result;
}

}  // namespace

uint64_t Sheet::last_durable() const {
  uint64_t last = 0;
  for (const Rank& r : rank)
    for (uint64_t step = 0; step < steps; ++step)
      if (r.saved[step] == durable) last = std::max(last, step);
  return last;
}

std::string Sheet::troubles() const {
  std::string all;
  for (size_t r = 0; r < rank.size(); ++r)
    if (rank[r].trouble[0] != '\0')
      all += "rank " + std::to_string(r) + ": " + rank[r].trouble.data() + "\n";
  return all;
}

std::vector<Call> Sheet::all_calls() const {
  std::vector<Call> all;
  for (const Rank& r : rank) {
    all.insert(all.end(), r.list.begin(), r.list.begin() + std::min<uint32_t>(r.calls, calls));
    all.insert(all.end(), r.noted.begin(), r.noted.begin() + std::min<uint32_t>(r.notes, notes));
  }
  std::sort(all.begin(), all.end(), [](const Call& a, const Call& b) { return a.order < b.order; });
  return all;
}

void arm(Sheet& sheet, int rank, const std::string& root, const Fault& fault) {
  armed = {&sheet, rank, root + "/", fault};
}

void disarm() { armed.sheet = nullptr; }

void pass(const char* name, const std::string& what) {
  if (!armed.sheet) return;
  Call* call = nullptr;
  (void)arrive(name, armed.root + what, "", call);
}

void note(const char* name, const std::string& what) {
  if (!armed.sheet) return;
  const uint32_t n = ++mine().notes;
  record(mine().noted[std::min<uint32_t>(n, Sheet::notes) - 1], name, armed.root + what, "");
}

}  // namespace trainlaunch::crash

// The calls themselves --------------------------------------------------------------------------

using namespace trainlaunch::crash;

extern "C" {

int __real_mkdir(const char*, mode_t);
int __real_mkdirat(int, const char*, mode_t);
int __real_unlinkat(int, const char*, int);
int __real_renameat(int, const char*, int, const char*);
int __real_renameat2(int, const char*, int, const char*, unsigned);
int __real_faccessat(int, const char*, int, int);
int __real_fsync(int);
int __real_flock(int, int);
int __real_ftruncate(int, off_t);
int __real_fallocate(int, int, off_t, off_t);
int __real_posix_fadvise(int, off_t, off_t, int);
int __real_fstat(int, struct stat*);
int __real_fstatvfs(int, struct statvfs*);
ssize_t __real_pread(int, void*, size_t, off_t);
ssize_t __real_pwrite(int, const void*, size_t, off_t);
DIR* __real_fdopendir(int);
struct dirent* __real_readdir(DIR*);

int __wrap_openat(int dir, const char* name, int flags, ...) {
  va_list args;
  va_start(args, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
  va_end(args);
  return intercept(flags & O_CREAT ? "create" : "open", joined(dir, name), "",
                   [&] { return __real_openat(dir, name, flags, mode); });
}

// What the headers call when flags are no constant.
int __wrap___openat_2(int dir, const char* name, int flags) {
  return __wrap_openat(dir, name, flags);
}

int __wrap_open(const char* name, int flags, ...) {
  va_list args;
  va_start(args, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
  va_end(args);
  return __wrap_openat(AT_FDCWD, name, flags, mode);
}

int __wrap_close(int fd) {
  return intercept("close", path_of(fd), "", [&] { return __real_close(fd); });
}

ssize_t __wrap_write(int fd, const void* from, size_t size) {
  const std::string path = path_of(fd);
  if (!watched(path)) return __real_write(fd, from, size);
  Call* call = nullptr;
  switch (arrive("write", path, "", call)) {
    case Effect::shorten:
      return __real_write(fd, from, (size + 1) / 2);
    case Effect::fail:
      call->failed = true;
      errno = armed.fault.error;
      return -1;
    case Effect::done_and_fail: {
      const bool some = __real_write(fd, from, (size + 1) / 2) > 0;
      errno = some ? armed.fault.error : errno;
      return -1;
    }
    default:
      return __real_write(fd, from, size);
  }
}

ssize_t __wrap_pwrite(int fd, const void* from, size_t size, off_t at) {
  return intercept("write", path_of(fd), "", [&] { return __real_pwrite(fd, from, size, at); });
}

ssize_t __wrap_pread(int fd, void* to, size_t size, off_t at) {
  const std::string path = path_of(fd);
  if (!watched(path)) return __real_pread(fd, to, size, at);
  Call* call = nullptr;
  const Effect effect = arrive("read", path, "", call);
  if (effect == Effect::shorten) size = (size + 1) / 2;
  if (effect != Effect::fail) return __real_pread(fd, to, size, at);
  errno = armed.fault.error;
  return -1;
}

ssize_t __wrap___pread_chk(int fd, void* to, size_t size, off_t at, size_t) {
  return __wrap_pread(fd, to, size, at);
}

int __wrap_fsync(int fd) {
  return intercept("fsync", path_of(fd), "", [&] { return __real_fsync(fd); });
}

int __wrap_mkdir(const char* name, mode_t mode) {
  return intercept("mkdir", joined(AT_FDCWD, name), "", [&] { return __real_mkdir(name, mode); });
}

int __wrap_mkdirat(int dir, const char* name, mode_t mode) {
  return intercept("mkdir", joined(dir, name), "", [&] { return __real_mkdirat(dir, name, mode); });
}

int __wrap_unlinkat(int dir, const char* name, int flags) {
  return intercept("unlink", joined(dir, name), "",
                   [&] { return __real_unlinkat(dir, name, flags); });
}

int __wrap_renameat(int from, const char* name, int to, const char* new_name) {
  return intercept("rename", joined(from, name), joined(to, new_name),
                   [&] { return __real_renameat(from, name, to, new_name); });
}

int __wrap_renameat2(int from, const char* name, int to, const char* new_name, unsigned flags) {
  return intercept("rename", joined(from, name), joined(to, new_name),
                   [&] { return __real_renameat2(from, name, to, new_name, flags); });
}

int __wrap_faccessat(int dir, const char* name, int mode, int flags) {
  return intercept("access", joined(dir, name), "",
                   [&] { return __real_faccessat(dir, name, mode, flags); });
}

int __wrap_flock(int fd, int what) {
  return intercept("flock", path_of(fd), "", [&] { return __real_flock(fd, what); });
}

int __wrap_ftruncate(int fd, off_t size) {
  return intercept("truncate", path_of(fd), "", [&] { return __real_ftruncate(fd, size); });
}

int __wrap_fallocate(int fd, int mode, off_t at, off_t size) {
  return intercept("allocate", path_of(fd), "",
                   [&] { return __real_fallocate(fd, mode, at, size); });
}

// The only one that returns its error.
int __wrap_posix_fadvise(int fd, off_t at, off_t size, int advice) {
  const int done = intercept("advise", path_of(fd), "", [&] {
    errno = __real_posix_fadvise(fd, at, size, advice);
    return errno == 0 ? 0 : -1;
  });
  return done == 0 ? 0 : errno;
}

int __wrap_fstat(int fd, struct stat* st) {
  return intercept("stat", path_of(fd), "", [&] { return __real_fstat(fd, st); });
}

int __wrap_fstatvfs(int fd, struct statvfs* st) {
  return intercept("statvfs", path_of(fd), "", [&] { return __real_fstatvfs(fd, st); });
}

DIR* __wrap_fdopendir(int fd) {
  DIR* dir = nullptr;
  const int done = intercept("opendir", path_of(fd), "", [&] {
    dir = __real_fdopendir(fd);
    return dir ? 0 : -1;
  });
  return done == 0 ? dir : nullptr;
}

struct dirent* __wrap_readdir(DIR* dir) {
  struct dirent* entry = nullptr;
  const int before = errno;
  bool failed = false;
  const int done = intercept("list", path_of(dirfd(dir)), "", [&] {
    errno = before;
    entry = __real_readdir(dir);
    failed = !entry && errno != before;
    return failed ? -1 : 0;
  });
  if (done == 0 && !failed) errno = before;
  return done == 0 ? entry : nullptr;
}

}  // extern "C"
