#include "cache.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "topo/snapshot.h"
#include "topo/trial.h"
#include "trusted.h"

namespace trainlaunch {
namespace {

constexpr const char* file_name = "topology";
constexpr const char* first_words = "gpu-bind-cache 1 ";
constexpr size_t max_size = 32 << 20;
constexpr unsigned nobody = 65534;

// For good; what looks at the machine needs no rights, and is not given any.
Status become_nobody() {
  if (setgroups(0, nullptr) != 0 || setresgid(nobody, nobody, nobody) != 0 ||
      setresuid(nobody, nobody, nobody) != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return fail_errno("giving up root's rights");
  if (setuid(0) == 0) return fail("root's rights are still within reach");
  return {};
}

Result<std::string> look_as_nobody() {
  return ask_child([]() -> Result<std::string> {
    if (auto s = become_nobody(); !s) return forward(s);
    // First the key: if the machine changes meanwhile, it fits no more.
    const std::string key = snapshot_key();
    auto snapshot = take_snapshot();
    if (!snapshot) return snapshot;
    return first_words + key + '\n' + *snapshot;
  });
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

Status write_cache(const std::string& directory) {
  if (geteuid() != 0) return fail("only root can write the topology cache");
  if (mkdir(directory.c_str(), 0755) != 0 && errno != EEXIST) return fail_errno(directory);
  const Descriptor dir(open(directory.c_str(), O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (dir.get() < 0) return fail_errno(directory);
  struct stat st {};
  if (fstat(dir.get(), &st) != 0 || st.st_uid != 0 || (st.st_mode & (S_IWGRP | S_IWOTH)))
    return fail(directory + ": must be root's and writable by nobody else");
  auto text = look_as_nobody();
  if (!text) return forward(text);
  if (text->size() > max_size) return fail("this machine's topology is larger than 32 MiB");

  const std::string fresh = ".topology." + std::to_string(getpid());
  const Descriptor file(
      openat(dir.get(), fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (file.get() < 0) return fail_errno(directory + '/' + fresh);
  Status s = write_fully(file.get(), text->data(), text->size(), directory + '/' + fresh);
  if (s && (fchmod(file.get(), 0644) != 0 ||
            renameat(dir.get(), fresh.c_str(), dir.get(), file_name) != 0))
    s = fail_errno(directory + '/' + file_name);
  if (!s) unlinkat(dir.get(), fresh.c_str(), 0);
  return s;
}

std::optional<Machine> read_cache(const std::string& directory, std::string& why) {
  const std::string path = directory + '/' + file_name;
  const auto text = read_trusted(path, max_size, false);
  if (!text) {
    why = text.error().what;
  } else if (text->empty()) {
    why = path + ": not there";
  } else if (const size_t line = text->find('\n');
             text->substr(0, line) != first_words + snapshot_key()) {
    why = path + ": of another boot, or the machine has changed since";
  } else if (auto machine = load_snapshot(text->substr(line + 1)); !machine) {
    why = path + ": " + machine.error().what;
  } else {
    return std::move(*machine);
  }
  return std::nullopt;
}

}  // namespace trainlaunch
