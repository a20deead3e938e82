#include "ownership.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>

namespace trainlaunch::plugin {
namespace {

enum class Fault { none, owner, mode };

Fault fault_of(const struct stat& st, uid_t admin) {
  if (st.st_uid != 0 && st.st_uid != admin) return Fault::owner;
  // Links have no modes; what they lead to is looked at as a part of the real path.
  if (S_ISLNK(st.st_mode)) return Fault::none;
  // In a sticky directory only a file's owner can replace it.
  if (S_ISDIR(st.st_mode) && st.st_mode & S_ISVTX) return Fault::none;
  return st.st_mode & (S_IWGRP | S_IWOTH) ? Fault::mode : Fault::none;
}

// "/a/b" to "/a", "/a" to "/".
void cut_last(char* path) {
  size_t n = strlen(path);
  while (n > 0 && path[n - 1] != '/') --n;
  while (n > 1 && path[n - 1] == '/') --n;
  path[n] = '\0';
}

// The path itself and every directory above it; `path` is used up. `named` is for `why`.
bool whole_path_is_admins(char* path, const char* named, uid_t admin, Reason& why) {
  for (bool itself = true;; itself = false) {
    const char* directory = itself ? "" : path;
    const char* its = itself ? "" : "its directory ";
    const char* blank = itself ? "" : " ";
    struct stat st;
    if (lstat(path, &st) != 0) {
      why.set(named, ": ", its, directory, blank, "cannot be looked at");
      return false;
    }
    switch (fault_of(st, admin)) {
      case Fault::owner:
        why.set(named, ": ", its, directory, blank, "does not belong to root");
        return false;
      case Fault::mode:
        why.set(named, ": others than root can write ", itself ? "it (chmod go-w)" : its,
                directory);
        return false;
      case Fault::none:
        break;
    }
    if (strcmp(path, "/") == 0) return true;
    cut_last(path);
  }
}

}  // namespace

bool only_admin_changes(int fd, const char* path, uid_t admin, Reason& why) noexcept {
  struct stat st;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    why.set(path, ": is not a regular file");
    return false;
  }
  char link[32], place[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, place, sizeof place - 1);
  if (n <= 0 || place[0] != '/') {
    why.set(path, ": cannot be found in /proc/self/fd, so that its owner is in doubt");
    return false;
  }
  place[n] = '\0';
  if (!whole_path_is_admins(place, path, admin, why)) return false;
  if (path[0] != '/' || strlen(path) >= sizeof place) {
    why.set(path, ": must be an absolute path of less than 4096 characters");
    return false;
  }
  memcpy(place, path, strlen(path) + 1);
  return whole_path_is_admins(place, path, admin, why);
}

}  // namespace trainlaunch::plugin
