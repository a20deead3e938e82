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

// Names that a save in progress uses, ".step-<S>.<random>.tmp", and a removal,
// ".trash.<random>".
std::string random_hex();  // 16 characters
std::string temporary_name(uint64_t step);
std::string trash_name();
bool is_temporary(std::string_view name);
bool is_trash(std::string_view name);
// What Directory::write_over leaves when it is cut short, of the files that tell of a run.
bool is_scratch(std::string_view name);

// What tells a run from every other, in its file of this name: random_hex(). A node's own directory
// of the run is called "<id>.<node>".
inline constexpr const char* run_id_name = "run.id";
inline constexpr size_t run_id_length = 16;
bool is_run_id(std::string_view text);
std::string local_name(const std::string& id, const std::string& node);
std::string node_in(const std::string& name);  // of a local_name(); empty: it is none

class Directory {
 public:
  // An error with errno ENOENT in `missing`, when given, is told apart from the others.
  static Result<Directory> open(const std::string& path, bool* missing = nullptr);
  // Opens `path`, made (0700) if it is not there, with its parents; what is made is on disk.
  static Result<Directory> open_or_make(const std::string& path);
  Result<Directory> enter(const std::string& name) const;

  const std::string& path() const { return path_; }
  std::string path_of(std::string_view name) const { return path_ + "/" + std::string(name); }

  Result<std::vector<std::string>> names() const;            // without "." and ".."
  Status make(const std::string& name) const;                // 0700; must not be there
  Result<Fd> create(const std::string& name) const;          // 0600, for writing; must not be there
  Result<Fd> open_or_create(const std::string& name) const;  // 0600, for reading and writing
  struct Opened {
    Fd fd;
    uint64_t bytes = 0;
    int64_t modified = 0;  // seconds since 1970
  };
  Result<Opened> read(const std::string& name) const;  // a regular file
  Result<std::string> read_text(const std::string& name, uint64_t limit) const;
  // A new file with this text, synced and closed.
  Status write_new(const std::string& name, std::string_view text) const;
  // The same for a file that may be there: after a crash it has the old or the new text.
  Status write_over(const std::string& name, std::string_view text) const;
  bool has(const std::string& name) const;
  // Of the files in it, without following links: their bytes, and the newest change of any or of
  // the directory itself, in seconds since 1970.
  struct Measure {
    uint64_t bytes = 0;
    int64_t modified = 0;
  };
  Result<Measure> measure() const;

  // Never replaces: `taken`, when given, tells this error apart from the others.
  Status rename_new(const std::string& from, const std::string& to, bool* taken = nullptr) const;
  // Files. `missing`, when given, tells the error that there is no `from` apart from the others.
  Status rename_over(const std::string& from, const std::string& to, bool* missing = nullptr) const;
  Status remove_file(const std::string& name) const;
  // A directory of files, of which `first` goes first. It gets a trash name before, which is on
  // disk before anything in it goes: what is removed by half is never taken for something whole,
  // and whoever still wants to rename it cannot.
  Status remove(const std::string& name, const std::string& first) const;
  Status sync() const;
  struct Space {
    uint64_t bytes = 0, files = 0;  // file systems that do not count files have any number left
  };
  Result<Space> space() const;

 private:
  Directory(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  Status empty(const std::string& name, const std::string& first) const;

  Fd fd_;
  std::string path_;
};

// Takes the space of a file before it is written, where the file system can.
Status preallocate(int fd, uint64_t bytes, const std::string& what);

}  // namespace trainlaunch
