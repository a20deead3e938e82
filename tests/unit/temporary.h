// A directory for a test, removed with the object.
#pragma once

#include <sys/mount.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace trainlaunch {

class Temporary {
 public:
  Temporary() : Temporary(std::getenv("TMPDIR")) {}
  explicit Temporary(const char* base) {
    std::string name = std::string(base ? base : "/tmp") + "/train-launch-test.XXXXXX";
    path_ = mkdtemp(name.data()) ? name : "";
  }
  ~Temporary() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

// Where files are made and synced at the speed of memory; where there is no such place, as ever.
inline const char* in_memory() {
  const char* place = "/dev/shm";
  return access(place, R_OK | W_OK | X_OK) == 0 ? place : std::getenv("TMPDIR");
}

// A disk of its own at `path`, with tmpfs's options, such as "size=1200k"; taken away with the
// object. False, and said, where that is not allowed.
class SmallDisk {
 public:
  SmallDisk(const std::string& path, const char* options) : path_(path) {
    std::filesystem::create_directory(path);
    mounted_ = mount("tmpfs", path.c_str(), "tmpfs", 0, options) == 0;
    if (!mounted_) std::puts("skipped: no right to mount a small disk");
  }
  ~SmallDisk() {
    if (mounted_) umount(path_.c_str());
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  explicit operator bool() const { return mounted_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
  bool mounted_ = false;
};

inline void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace trainlaunch
