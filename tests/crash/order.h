// What a file system owes to a program, and no more: bytes of a file are on disk when it has been
// synced, a name when its directory has been, in no order otherwise. Most file systems do more, and
// hide what is missing.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "faults.h"

namespace trainlaunch::crash {

// Follows the calls of a job, and finds where a loss of power could leave something that was
// promised undone, or a half of something that looks whole.
class Order {
 public:
  // One line for each such place.
  static std::vector<std::string> faults_in(const std::vector<Call>& calls);

 private:
  struct Name {
    bool written = false;   // has bytes that are not on disk
    bool unsynced = false;  // is itself not on disk
    int by = 0;             // the rank that gave it
  };
  void follow(const Call& call);
  void rename(const std::string& from, const std::string& to, int by);
  void said(const std::string& name, const std::string& path, int by);
  // Finds what is not on disk at `path` or below; with `above`, also that its name may be lost.
  void require(const std::string& path, bool above, const std::string& when);
  void complain(const std::string& text);

  std::map<std::string, Name> names_;
  std::set<std::string> lacking_;  // directories whose loss of a name is not on disk
  std::vector<std::string> faults_;
};

}  // namespace trainlaunch::crash
