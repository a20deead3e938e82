#include "topo/snapshot.h"

#include <sched.h>
#include <sys/utsname.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/processors.h"
#include "config.h"
#include "topo/host.h"
#include "topo/hwloc_machine.h"
#include "topo/nvml.h"

namespace trainlaunch {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The parts of a key, one in a line.
class Key {
 public:
  void add(const std::string& line) {
    digest_.update(line.data(), line.size());
    digest_.update("\n", 1);
  }
  void add_file(const fs::path& path) {
    std::ifstream in(path);
    std::string line;
    std::getline(in, line);
    add(path.string() + ' ' + line);
  }
  // The names in a folder that `wanted` picks, with what it says of each.
  template <class F>
  void add_folder(const fs::path& folder, F wanted) {
    std::vector<std::string> lines;
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
      if (auto line = wanted(at->path())) lines.push_back(*line);
    std::sort(lines.begin(), lines.end());
    add(folder.string());
    for (const std::string& line : lines) add(line);
  }
  std::string hex() const { return digest_.hex(); }

 private:
  Digest digest_;
};

using Line = std::optional<std::string>;

std::string target_of(const fs::path& link) {
  std::error_code error;
  return fs::read_symlink(link, error).string();
}

// A PCI function with its driver, without which hwloc sees no device; for AMD's GPUs also how they
// are partitioned.
Line function(const fs::path& path) {
  std::string line =
      path.filename().string() + ' ' + fs::path(target_of(path / "driver")).filename().string();
  if (line.ends_with(" amdgpu"))
    for (const char* mode : {"current_compute_partition", "current_memory_partition"}) {
      std::ifstream in(path / mode);
      std::string word;
      in >> word;
      line += ' ' + word;
    }
  return line;
}

// Virtual ones come and go with every container.
Line device_of_hardware(const fs::path& path) {
  const std::string target = target_of(path);
  if (target.find("/pci") == std::string::npos) return std::nullopt;
  return path.filename().string() + ' ' + target;
}

Line name(const fs::path& path) { return path.filename().string(); }

Json to_json(const NvmlGpu& g) {
  Json j = {{"pci", {g.pci.domain, g.pci.bus, g.pci.device, g.pci.function}},
            {"uuid", g.uuid},
            {"mig_mode", g.mig_mode},
            {"mig", g.mig}};
  if (g.minor) j["minor"] = *g.minor;
  return j;
}

NvmlGpu from_json(const Json& j) {
  NvmlGpu g;
  g.pci = {j.at("pci").at(0), j.at("pci").at(1), j.at("pci").at(2), j.at("pci").at(3)};
  g.uuid = j.at("uuid");
  g.mig_mode = j.at("mig_mode");
  g.mig = j.at("mig").get<std::vector<std::string>>();
  if (j.contains("minor")) g.minor = j.at("minor").get<int>();
  return g;
}

bool has_nvidia(const Machine& machine) {
  return std::any_of(machine.gpus.begin(), machine.gpus.end(),
                     [](const Gpu& gpu) { return gpu.vendor == Vendor::nvidia; });
}

// The CPUs that this process could have: asked for every one, the kernel gives those of the cpuset.
CpuSet own_cpus() {
  struct Mask {
    unsigned long word[max_cpu / (8 * sizeof(unsigned long))];
    cpu_set_t* set() { return reinterpret_cast<cpu_set_t*>(word); }
  } before, every;
  if (sched_getaffinity(0, sizeof before, before.set()) != 0) return {};
  std::fill(std::begin(every.word), std::end(every.word), ~0ul);
  const bool asked = sched_setaffinity(0, sizeof every, every.set()) == 0;
  const CpuSet cpus = allowed_processors();
  if (asked) sched_setaffinity(0, sizeof before, before.set());
  return cpus;
}

}  // namespace

std::string snapshot_key() {
  Key key;
  key.add(PACKAGE_VERSION);
  key.add(hwloc_version());
  utsname host{};
  uname(&host);
  key.add(host.nodename);
  key.add_file("/proc/sys/kernel/random/boot_id");
  for (const char* file : {"cpu/online", "cpu/smt/active", "node/online"})
    key.add_file(fs::path("/sys/devices/system") / file);
  key.add_folder("/sys/bus/pci/devices", function);
  key.add_folder("/sys/class/infiniband", name);
  key.add_folder("/sys/class/net", device_of_hardware);
  key.add_folder("/sys/class/drm", name);
  key.add_folder("/sys/class/kfd/kfd/topology/nodes", name);
  // MIG instances: gpu0/mig/gi1/ci0.
  key.add_folder("/proc/driver/nvidia/gpus", name);
  const fs::path capabilities = "/proc/driver/nvidia/capabilities";
  std::error_code error;
  std::vector<std::string> instances;
  for (fs::recursive_directory_iterator at(capabilities, error), end; !error && at != end;
       at.increment(error))
    instances.push_back(at->path().string());
  std::sort(instances.begin(), instances.end());
  for (const std::string& instance : instances) key.add(instance);
  return key.hex();
}

Result<std::string> take_snapshot() {
  auto xml = xml_of_this_host();
  if (!xml) return xml;
  auto machine = machine_from_own_xml(*xml);
  if (!machine) return forward(machine);
  Json nvml;
  // Where the library does not answer whoever writes this, readers ask it themselves.
  if (has_nvidia(*machine))
    if (const auto known = read_nvml()) {
      nvml = Json::array();
      for (const NvmlGpu& gpu : *known) nvml.push_back(to_json(gpu));
    }
  return nvml.dump() + '\n' + *xml;
}

Result<Machine> load_snapshot(const std::string& text) {
  const size_t line = std::min(text.find('\n'), text.size());
  std::optional<std::vector<NvmlGpu>> known;
  try {
    const Json nvml = Json::parse(text.substr(0, line));
    if (nvml.is_array()) {
      known.emplace();
      for (const Json& gpu : nvml) known->push_back(from_json(gpu));
    }
  } catch (const Json::exception&) {
    return fail("a damaged snapshot");
  }
  auto machine = machine_from_own_xml(text.substr(std::min(line + 1, text.size())));
  if (!machine) return machine;
  machine->kind = "live";
  machine->allowed = own_cpus() & machine->cpus;
  if (machine->allowed.none()) machine->allowed = machine->cpus;
  add_host_facts(*machine, "");
  try_ports(*machine, "");
  if (has_nvidia(*machine)) {
    if (known)
      add_nvml_facts(*machine, *known);
    else if (const auto found = read_nvml())
      add_nvml_facts(*machine, *found);
  }
  return machine;
}

}  // namespace trainlaunch
