#include "train/memory.h"

#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "train/words.h"

namespace trainlaunch {

namespace {

// The number behind a name, as in "MemAvailable:   123 kB" or "inactive_file 123".
std::optional<uint64_t> field(const std::string& path, const std::string& name) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string word, unit;
    uint64_t n = 0;
    if (words >> word >> n && word == name) return (words >> unit) && unit == "kB" ? n << 10 : n;
  }
  return std::nullopt;
}

// "max", and what version 1 writes for it, is no limit.
std::optional<uint64_t> limit_in(const std::string& path) {
  constexpr uint64_t none = uint64_t{1} << 60;
  std::ifstream in(path);
  uint64_t n = 0;
  if (!(in >> n) || n >= none) return std::nullopt;
  return n;
}

// What a control group leaves: its limit without what is used, but for caches that can go.
std::optional<uint64_t> left_in(const std::string& group, bool version2) {
  const auto limit = limit_in(group + (version2 ? "/memory.max" : "/memory.limit_in_bytes"));
  const auto used = limit_in(group + (version2 ? "/memory.current" : "/memory.usage_in_bytes"));
  if (!limit || !used) return std::nullopt;
  const uint64_t caches =
      field(group + "/memory.stat", version2 ? "inactive_file" : "total_inactive_file").value_or(0);
  const uint64_t needed = *used - std::min(caches, *used);
  return *limit - std::min(needed, *limit);
}

// The least that the groups of this process leave, from its own up to the root.
std::optional<uint64_t> left_in_groups(const KernelFiles& files) {
  std::optional<uint64_t> least;
  std::ifstream in(files.proc + "/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool version2 = controllers == ",,";
    if (!version2 && controllers.find(",memory,") == std::string::npos) continue;
    const std::string root = files.cgroup + (version2 ? "" : "/memory");
    for (std::string path = line.substr(second + 1);; path.erase(path.rfind('/'))) {
      if (path == "/") path.clear();
      if (const auto left = left_in(root + path, version2))
        least = std::min(*left, least.value_or(*left));
      if (path.rfind('/') == std::string::npos) break;
    }
  }
  return least;
}

// Where the kernel's files are hidden, the limit is one that no run can pass.
uint64_t machine_memory() {
  struct sysinfo machine {};
  sysinfo(&machine);  // fails for a wrong address only
  return static_cast<uint64_t>(machine.totalram) * machine.mem_unit;
}

}  // namespace

Allowance allowed_memory(int ranks_of_node, const KernelFiles& files) {
  const auto ranks = static_cast<uint64_t>(std::max(ranks_of_node, 1));
  const std::string sharers = ranks == 1 ? "" : ", shared by " + plural(ranks, "rank");
  const auto available = field(files.proc + "/meminfo", "MemAvailable:");
  const uint64_t whole = available ? *available : machine_memory();
  Allowance a{whole / ranks,
              (available ? "MemAvailable of " + binary_size(whole)
                         : "all " + binary_size(whole) + " of the machine, as " + files.proc +
                               "/meminfo does not say what is available") +
                  sharers};
  if (const auto left = left_in_groups(files); left && *left / ranks < a.bytes)
    a = {*left / ranks, "the control group's remaining " + binary_size(*left) + sharers};
  rlimit space{};
  const auto used = field(files.proc + "/self/status", "VmSize:");
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY && used) {
    const uint64_t left = space.rlim_cur - std::min<uint64_t>(*used, space.rlim_cur);
    if (left < a.bytes)
      a = {left, "the remaining " + binary_size(left) + " of the address space (ulimit -v)"};
  }
  return a;
}

bool huge_pages() {
  std::ifstream in("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string words;
  return std::getline(in, words) && words.find("[never]") == std::string::npos;
}

uint64_t resident_share(const KernelFiles& files) {
  return field(files.proc + "/self/smaps_rollup", "Pss:").value_or(0);
}

}  // namespace trainlaunch
