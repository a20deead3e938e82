// The topology cache: what is kept is the machine, and only root's word for it is taken.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "../../spank/cache.h"
#include "../../spank/report.h"
#include "temporary.h"
#include "topo/snapshot.h"

using namespace trainlaunch;
namespace fs = std::filesystem;

namespace {

bool root() {
  if (getuid() == 0) return true;
  MESSAGE("skipped: only root can write the cache");
  return false;
}

// All that a plan is made from.
std::string description(const Machine& m) {
  const auto nics = choose_nics(m, {}, Policy());
  REQUIRE(nics);
  std::string text = machine_json(m, *nics) + to_list(m.allowed);
  for (const Core& c : m.cores)
    text += ' ' + to_list(c.cpus) + ' ' + std::to_string(c.l3) + ' ' + std::to_string(c.numa) +
            ' ' + std::to_string(c.package);
  return text;
}

std::string described(const Result<Machine>& m) {
  REQUIRE(m);
  return description(*m);
}

struct Cache {
  Cache() {
    chmod(dir.path().c_str(), 0755);
    const Status s = write_cache(path);
    REQUIRE_MESSAGE(s, (s ? std::string() : s.error().what));
  }
  // Why it is not used; empty: it is.
  std::string refusal() const {
    std::string why;
    return read_cache(path, why) ? "" : why;
  }
  bool refused(const std::string& reason) const {
    const std::string why = refusal();
    if (why.find(reason) != std::string::npos) return true;
    MESSAGE(why);
    return false;
  }
  Temporary dir;
  std::string path = dir / "cache";
  std::string file = path + "/topology";
};

}  // namespace

TEST_CASE("a snapshot holds what a look at the machine finds") {
  isolate_hwloc();
  const auto text = take_snapshot();
  REQUIRE(text);
  CHECK(described(load_snapshot(*text)) == described(load_live()));
  CHECK(snapshot_key() == snapshot_key());
  CHECK(snapshot_key().size() == 32);
  for (const size_t size : {size_t{0}, size_t{3}, text->find('\n') + 1, text->size() / 2})
    CHECK_FALSE(load_snapshot(text->substr(0, size)));
}

TEST_CASE("the CPUs that a reader may use are its own") {
  isolate_hwloc();
  auto text = take_snapshot();
  REQUIRE(text);
  // As if whoever took it had been allowed no CPU but one that is not there.
  const std::string allowed = "allowed_cpuset=\"";
  const size_t at = text->find(allowed);
  REQUIRE(at != std::string::npos);
  const size_t value = at + allowed.size();
  text->replace(value, text->find('"', value) - value, "0x00000001");
  CHECK(described(load_snapshot(*text)) == described(load_live()));
}

TEST_CASE("what root has written every user can use") {
  if (!root()) return;
  isolate_hwloc();
  const Cache cache;
  std::string why;
  const auto machine = read_cache(cache.path, why);
  REQUIRE_MESSAGE(machine, why);
  CHECK(description(*machine) == described(load_live()));
  struct stat st {};
  REQUIRE(stat(cache.file.c_str(), &st) == 0);
  CHECK((st.st_mode & 07777) == 0644);
  CHECK(st.st_uid == 0);

  const pid_t pid = fork();
  if (pid == 0) {
    if (setgroups(0, nullptr) || setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
      _exit(2);
    _exit(cache.refusal().empty() ? 0 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);

  // Again, over the old one, with nothing left beside it.
  CHECK(write_cache(cache.path));
  CHECK(cache.refusal() == "");
  CHECK(std::distance(fs::directory_iterator(cache.path), fs::directory_iterator()) == 1);
}

TEST_CASE("a cache that is stale, damaged, or not root's alone is not used") {
  if (!root()) return;
  isolate_hwloc();
  const Cache cache;
  const std::string whole = read_file(cache.file);
  const size_t key = whole.find(' ', whole.find(' ') + 1) + 1;

  std::string other = whole;
  other[key] = other[key] == '0' ? '1' : '0';
  for (const std::string& text :
       {other, std::string("gpu-bind-cache 2 ") + whole.substr(key), whole.substr(1),
        std::string("x"), std::string(100, '\n'), whole.substr(0, key)}) {
    write_file(cache.file, text);
    CHECK(cache.refused("of another boot"));
  }
  write_file(cache.file, whole.substr(0, whole.size() / 2));
  CHECK_FALSE(cache.refusal().empty());
  write_file(cache.file, "");
  CHECK(cache.refused("not there"));

  write_file(cache.file, whole);
  CHECK(cache.refusal() == "");
  chmod(cache.file.c_str(), 0666);
  CHECK(cache.refused("others than root can write it"));
  chmod(cache.file.c_str(), 0644);
  CHECK(chown(cache.file.c_str(), 65534, 0) == 0);
  CHECK(cache.refused("does not belong to root"));
  CHECK(chown(cache.file.c_str(), 0, 0) == 0);
  CHECK(chown(cache.path.c_str(), 65534, 0) == 0);
  CHECK(cache.refused("does not belong to root"));
  CHECK(chown(cache.path.c_str(), 0, 0) == 0);
  chmod(cache.path.c_str(), 0777);
  CHECK(cache.refused("others than root can write"));
  chmod(cache.path.c_str(), 0755);
  CHECK(cache.refusal() == "");
  fs::rename(cache.file, cache.path + "/real");
  fs::create_symlink("real", cache.file);
  CHECK(cache.refused("symbolic link"));
  fs::remove(cache.file);
  CHECK(cache.refused("not there"));
}

TEST_CASE("the cache is written into no directory that is not root's, and over no link") {
  if (!root()) return;
  isolate_hwloc();
  const Cache cache;
  chmod(cache.path.c_str(), 0777);
  CHECK_FALSE(write_cache(cache.path));
  chmod(cache.path.c_str(), 0755);
  CHECK(chown(cache.path.c_str(), 65534, 0) == 0);
  CHECK_FALSE(write_cache(cache.path));
  CHECK(chown(cache.path.c_str(), 0, 0) == 0);
  fs::create_directory_symlink("cache", cache.dir / "link");
  CHECK_FALSE(write_cache(cache.dir / "link"));
  CHECK_FALSE(write_cache(cache.dir / "no/such"));
  // A link in the file's place goes; what it leads to stays.
  write_file(cache.dir / "precious", "mine");
  fs::remove(cache.file);
  fs::create_symlink(cache.dir / "precious", cache.file);
  CHECK(write_cache(cache.path));
  CHECK(read_file(cache.dir / "precious") == "mine");
  CHECK(cache.refusal() == "");
}
