#include "topo/topo.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "topo/hwloc_machine.h"
#include "topo/nccl_machine.h"
#include "topo/topo_m.h"

extern char** environ;

namespace trainlaunch {
namespace {

// The largest real files are about 1 MB.
constexpr off_t max_file = 32 << 20;

}  // namespace

std::string to_string(const PciId& id) {
  char text[32];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.%x", id.domain, id.bus, id.device, id.function);
  return text;
}

std::string to_string(const Gpu& gpu) {
  std::string text = to_string(gpu.pci);
  if (gpu.partition) text += '/' + std::to_string(*gpu.partition);
  if (!gpu.mig.empty()) text += '/' + gpu.mig;
  return text;
}

std::string to_string(const Nic& nic) {
  return nic.verbs ? nic.name + ':' + std::to_string(nic.port) : nic.name;
}

const char* name_of(Vendor vendor) {
  switch (vendor) {
    case Vendor::nvidia:
      return "nvidia";
    case Vendor::amd:
      return "amd";
    case Vendor::intel:
      return "intel";
  }
  return "?";
}

const char* name_of(LinkLayer layer) {
  switch (layer) {
    case LinkLayer::unknown:
      return "unknown";
    case LinkLayer::infiniband:
      return "infiniband";
    case LinkLayer::ethernet:
      return "ethernet";
    case LinkLayer::omni_path:
      return "omni-path";
    case LinkLayer::slingshot:
      return "slingshot";
  }
  return "?";
}

const char* name_of(Level level) {
  switch (level) {
    case Level::pix:
      return "PIX";
    case Level::pxb:
      return "PXB";
    case Level::phb:
      return "PHB";
    case Level::node:
      return "NODE";
    case Level::sys:
      return "SYS";
  }
  return "?";
}

int Machine::numa_of(const CpuSet& set) const {
  if (set.none()) return -1;
  for (const NumaNode& n : numa)
    if ((set & ~n.cpus).none()) return n.node;
  return -1;
}

bool Machine::knows(const Place& place) const {
  if (place.numa >= 0 || place.cpus != cpus || numa.size() == 1) return true;
  return numa.empty() && !cores.empty() && cores.front().package >= 0 &&
         std::all_of(cores.begin(), cores.end(),
                     [&](const Core& c) { return c.package == cores.front().package; });
}

Result<Machine> load_file(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return fail_errno(path, exit_code::usage);
  struct stat st {};
  std::string text;
  std::string why;
  if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
    close(fd);
    return machine_from_sysfs(path);
  }
  if (!S_ISREG(st.st_mode)) {
    why = "not a regular file";
  } else if (st.st_size > max_file) {
    why = "too large for a topology file (the limit is 32 MiB)";
  } else {
    text.resize(static_cast<size_t>(st.st_size));
    size_t got = 0;
    while (got < text.size()) {
      const ssize_t n = read(fd, text.data() + got, text.size() - got);
      if (n < 0) why = std::strerror(errno);
      if (n <= 0) break;
      got += static_cast<size_t>(n);
    }
    text.resize(got);
  }
  close(fd);
  if (!why.empty()) return fail(path + ": " + why, exit_code::usage);
  return load_text(text, path);
}

Result<Machine> load_text(const std::string& text, const std::string& name) {
  const auto starts = [&](std::string_view magic) { return text.starts_with(magic); };
  if (starts("BZh") || starts("\x1f\x8b") ||
      starts("\xfd"
             "7zXZ") ||
      starts("\x28\xb5\x2f\xfd"))
    return fail(name + ": compressed; unpack it, and name the file or folder that comes out",
                exit_code::usage);
  if (text.find('\0') != std::string::npos)
    return fail(name + ": not a text file", exit_code::usage);
  const auto has = [&](std::string_view word) { return text.find(word) != std::string::npos; };
  if (has("<topology")) return machine_from_hwloc_xml(text, name);
  if (has("<system")) return machine_from_nccl_xml(text, name);
  if (is_topo_m(text)) return machine_from_topo_m(text, name);
  if (is_showtoponuma(text)) return machine_from_showtoponuma(text, name);
  return fail(name +
                  ": not a topology file; known are: hwloc XML (lstopo --of xml), NCCL's and "
                  "RCCL's XML (NCCL_TOPO_DUMP_FILE), what nvidia-smi topo -m prints, and folders "
                  "of hwloc-gather-topology",
              exit_code::usage);
}

Result<Machine> load_live() { return machine_from_this_host(); }

void isolate_hwloc() {
  std::vector<std::string> names;
  for (char** e = environ; *e; ++e)
    if (std::strncmp(*e, "HWLOC_", 6) == 0) {
      const std::string_view variable(*e);
      names.emplace_back(variable.substr(0, variable.find('=')));
    }
  for (const std::string& name : names) unsetenv(name.c_str());
  setenv("HWLOC_HIDE_ERRORS", "2", 1);
  // hwloc's own XML reader: libxml2 knows entities and external files, neither of which a topology
  // needs.
  setenv("HWLOC_LIBXML", "0", 1);
}

}  // namespace trainlaunch
