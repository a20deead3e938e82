// What checkpoints ask of a file system. Directories are opened once and then named by descriptor,
// links are never followed, and every error says which path.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/base.h"

namespace trainlaunch {

// "step-000000500", and back; nothing for any other name.
std::string checkpoint_name(uint64_t step);
std::optional<uint64_t> step_of(std::string_view name);

// Names that a save or a removal in progress uses: ".step-<S>.<random>.tmp".
std::string temporary_name(uint64_t step);
bool is_temporary(std::string_view name);

class Directory {
 public:
  // An error with errno ENOENT in `missing`, when given, is told apart from the others.
  static Result<Directory> open(const std::string& path, bool* missing = nullptr);
  // Opens `path`, made (0700) if it is not there, with its parents; what is made is on disk.
  static Result<Directory> open_or_make(const std::string& path);
  Result<Directory> enter(const std::string& name) const;

  const std::string& path() const { return path_; }
  std::string path_of(std::string_view name) const { return path_ + "/" + std::string(name); }

  Result<std::vector<std::string>> names() const;    // without "." and ".."
  Status make(const std::string& name) const;        // 0700; must not be there
  Result<Fd> create(const std::string& name) const;  // 0600, for writing; must not be there
  struct Opened {
    Fd fd;
    uint64_t bytes = 0;
  };
  Result<Opened> read(const std::string& name) const;  // a regular file

  // Never replaces: `taken`, when given, tells this error apart from the others.
  Status rename_new(const std::string& from, const std::string& to, bool* taken = nullptr) const;
  Status remove(const std::string& name) const;  // a directory of files
  Status sync() const;
  // For as long as this object or its process lives. False: another holds it. A file system that
  // knows no locks gives it to everybody.
  bool lock() const;
  Result<uint64_t> free_bytes() const;

 private:
  Directory(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Fd fd_;
  std::string path_;
};

}  // namespace trainlaunch
