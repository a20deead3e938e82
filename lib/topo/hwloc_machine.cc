#include "topo/hwloc_machine.h"

#include <hwloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include "topo/host.h"
#include "topo/hwloc_reader.h"
#include "topo/nvml.h"
#include "topo/trial.h"

namespace trainlaunch {
namespace {

struct Destroy {
  void operator()(hwloc_topology_t t) const { hwloc_topology_destroy(t); }
};
using Topology = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, Destroy>;

// hwloc with the settings that all our sources share: whole machine, devices kept.
Result<Topology> prepare() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return fail("hwloc cannot start");
  Topology t(raw);
  unsigned long flags = HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED;
#if HWLOC_API_VERSION >= 0x00020800
  flags |= HWLOC_TOPOLOGY_FLAG_NO_DISTANCES | HWLOC_TOPOLOGY_FLAG_NO_MEMATTRS |
           HWLOC_TOPOLOGY_FLAG_NO_CPUKINDS;
#endif
  hwloc_topology_set_flags(raw, flags);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  // These ask display servers and runtimes that are slow, hang on some hosts, and answer by the
  // user's environment.
  for (const char* component : {"gl", "opencl", "cuda"})
    hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  return t;
}

Result<Machine> read_xml(const std::string& text) {
  auto t = prepare();
  if (!t) return forward(t);
  // The size counts the terminating zero.
  const int size = static_cast<int>(text.size() + 1);
  if (hwloc_topology_set_xmlbuffer(t->get(), text.c_str(), size) != 0 ||
      hwloc_topology_load(t->get()) != 0)
    return fail("hwloc cannot read it (cut off, damaged, or of a newer version than 2)");
  auto machine = read_hwloc(t->get());
  if (machine) machine->kind = "hwloc-xml";
  return machine;
}

Result<Topology> load_this_host() {
  auto t = prepare();
  if (!t) return forward(t);
#ifdef __SANITIZE_ADDRESS__
  const __lsan::ScopedDisabler not_ours;  // libpciaccess never frees its tables
#endif
  if (hwloc_topology_load(t->get()) != 0) return fail("hwloc cannot read this machine");
  return t;
}

Result<std::string> write_xml(hwloc_topology_t t) {
  char* text = nullptr;
  int size = 0;
  if (hwloc_topology_export_xmlbuffer(t, &text, &size, 0) != 0)
    return fail("hwloc cannot write down what it finds");
  std::string xml(text);
  hwloc_free_xmlbuffer(t, text);
  return xml;
}

// hwloc's XML of the machine whose /sys and /proc are below `root`. hwloc takes such a root from
// its environment only, which is why this belongs into a child process.
Result<std::string> xml_of_tree(const std::string& root) {
  setenv("HWLOC_FSROOT", root.c_str(), 1);
  setenv("HWLOC_COMPONENTS", "linux,stop", 1);
  auto t = prepare();
  if (!t) return forward(t);
  if (hwloc_topology_load(t->get()) != 0) return fail("hwloc finds no machine in it");
  return write_xml(t->get());
}

}  // namespace

Result<Machine> machine_from_hwloc_xml(const std::string& text, const std::string& name) {
  const auto bad = [&](const std::string& why) {
    return fail(name + ": not a usable hwloc topology: " + why, exit_code::usage);
  };
  // hwloc trusts its own files: damaged ones meet assertions, and worse.
  const auto tried = ask_child([&]() -> Result<std::string> {
    auto machine = read_xml(text);
    if (!machine) return forward(machine);
    return std::string();
  });
  if (!tried) return bad(tried.error().what);
  auto machine = read_xml(text);
  if (!machine) return bad(machine.error().what);
  machine->file = name;
  return machine;
}

Result<Machine> machine_from_sysfs(const std::string& root) {
  const std::string cpus = root + "/sys/devices/system/cpu";
  if (access(cpus.c_str(), X_OK) != 0)
    return fail(root +
                    ": not a copied machine: no folder sys/devices/system/cpu in it (see "
                    "hwloc-gather-topology)",
                exit_code::usage);
  const auto xml = ask_child([&] { return xml_of_tree(root); });
  if (!xml) return fail(root + ": not a usable sysfs tree: " + xml.error().what, exit_code::usage);
  auto machine = machine_from_hwloc_xml(*xml, root);
  if (!machine) return machine;
  machine->kind = "sysfs";
  add_host_facts(*machine, root);
  return machine;
}

Result<Machine> machine_from_this_host() {
  auto t = load_this_host();
  if (!t) return forward(t);
  auto machine = read_hwloc(t->get());
  if (!machine) return fail("hwloc reads this machine, but: " + machine.error().what);
  machine->kind = "live";
  add_host_facts(*machine, "");
  try_ports(*machine, "");
  const bool nvidia = std::any_of(machine->gpus.begin(), machine->gpus.end(),
                                  [](const Gpu& gpu) { return gpu.vendor == Vendor::nvidia; });
  // Without the library GPUs are known by their PCI functions alone, which is enough but for MIG.
  if (nvidia)
    if (const auto known = read_nvml()) add_nvml_facts(*machine, *known);
  return machine;
}

Result<std::string> xml_of_this_host() {
  auto t = load_this_host();
  if (!t) return forward(t);
  return write_xml(t->get());
}

Result<Machine> machine_from_own_xml(const std::string& xml) { return read_xml(xml); }

std::string hwloc_version() { return HWLOC_VERSION " " + std::to_string(hwloc_get_api_version()); }

}  // namespace trainlaunch
