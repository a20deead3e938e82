#include "topo/hwloc_machine.h"

#include <hwloc.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <tuple>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include "topo/port_state.h"
#include "topo/trial.h"

namespace trainlaunch {
namespace {

using Object = hwloc_obj_t;
using Pci = hwloc_obj_attr_u::hwloc_pcidev_attr_s;
struct Destroy {
  void operator()(hwloc_topology_t t) const { hwloc_topology_destroy(t); }
};
using Topology = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, Destroy>;

constexpr uint16_t pci_nvidia = 0x10de, pci_amd = 0x1002, pci_intel = 0x8086;
// Fabrics whose devices NCCL and UCX do not open themselves.
constexpr uint16_t pci_slingshot = 0x17db, pci_amazon = 0x1d0f, pci_cisco = 0x1137;

std::string info(Object obj, const std::string& name) {
  const char* value = hwloc_obj_get_info_by_name(obj, name.c_str());
  return value ? value : "";
}

Result<CpuSet> to_cpus(hwloc_const_bitmap_t bitmap) {
  CpuSet cpus;
  if (!bitmap) return cpus;
  if (hwloc_bitmap_last(bitmap) >= max_cpu || hwloc_bitmap_weight(bitmap) < 0)
    return fail("CPU numbers above " + std::to_string(max_cpu - 1));
  for (int i = hwloc_bitmap_first(bitmap); i >= 0; i = hwloc_bitmap_next(bitmap, i))
    cpus.set(static_cast<size_t>(i));
  return cpus;
}

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

// Reads a loaded topology into a Machine.
class Reader {
 public:
  Reader(hwloc_topology_t t, bool live) : t_(t), live_(live) {}

  Result<Machine> read() {
    if (auto s = read_cpus(); !s) return forward(s);
    read_cores();
    for (Object d = nullptr; (d = hwloc_get_next_pcidev(t_, d));) {
      if (auto s = read_device(d); !s) return forward(s);
    }
    sort_devices();
    return std::move(m_);
  }

 private:
  struct FoundGpu {
    Gpu gpu;
    Object pci;
    bool driven;  // some driver has made a device of it
  };
  struct FoundNic {
    Nic nic;
    Object pci;
  };

  Status read_cpus() {
    auto cpus = to_cpus(hwloc_topology_get_topology_cpuset(t_));
    if (!cpus) return forward(cpus);
    auto allowed = to_cpus(hwloc_topology_get_allowed_cpuset(t_));
    if (!allowed) return forward(allowed);
    m_.cpus = *cpus;
    m_.allowed = *allowed & *cpus;
    if (m_.cpus.none()) return fail("no CPUs in it");
    if (m_.allowed.none()) m_.allowed = m_.cpus;

    // GPU memory and the fast memory of some CPUs are nodes too: without CPUs, or with CPUs that an
    // earlier node has.
    CpuSet taken;
    for (Object n = nullptr; (n = hwloc_get_next_obj_by_type(t_, HWLOC_OBJ_NUMANODE, n));) {
      auto node = to_cpus(n->cpuset);
      if (!node) return forward(node);
      if (node->none() || (*node & taken).any()) continue;
      taken |= *node;
      m_.numa.push_back({static_cast<int>(n->os_index), *node});
    }
    std::sort(m_.numa.begin(), m_.numa.end(),
              [](const NumaNode& a, const NumaNode& b) { return a.node < b.node; });
    return {};
  }

  void read_cores() {
    // Some machines (virtual ones, old files) have hardware threads and no cores.
    const bool cores = hwloc_get_nbobjs_by_type(t_, HWLOC_OBJ_CORE) > 0;
    const hwloc_obj_type_t type = cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    for (Object o = nullptr; (o = hwloc_get_next_obj_by_type(t_, type, o));) {
      Core core;
      for (int i = hwloc_bitmap_first(o->cpuset); i >= 0; i = hwloc_bitmap_next(o->cpuset, i))
        core.cpus.push_back(i);
      if (core.cpus.empty()) continue;
      if (Object l3 = hwloc_get_ancestor_obj_by_type(t_, HWLOC_OBJ_L3CACHE, o))
        core.l3 = static_cast<int>(l3->logical_index);
      if (Object package = hwloc_get_ancestor_obj_by_type(t_, HWLOC_OBJ_PACKAGE, o))
        core.package = static_cast<int>(package->logical_index);
      for (const NumaNode& n : m_.numa)
        if (n.cpus.test(static_cast<size_t>(core.cpus.front()))) core.numa = n.node;
      m_.cores.push_back(std::move(core));
    }
  }

  Status read_device(Object d) {
    const Pci& pci = d->attr->pcidev;
    const PciId id{static_cast<uint32_t>(pci.domain), pci.bus, pci.dev, pci.func};
    Place place;
    if (Object beside = hwloc_get_non_io_ancestor_obj(t_, d)) {
      auto cpus = to_cpus(beside->cpuset);
      if (!cpus) return forward(cpus);
      place.cpus = *cpus;
    }
    if (place.cpus.none()) place.cpus = m_.cpus;
    place.numa = m_.numa_of(place.cpus);
    read_gpus(d, id, place);
    read_nics(d, id, place);
    return {};
  }

  static std::optional<Vendor> gpu_vendor(const Pci& pci, const PciId& id) {
    const bool display = pci.class_id == 0x0300 || pci.class_id == 0x0302 ||
                         pci.class_id == 0x0380 || pci.class_id == 0x1200;
    if (!display) return std::nullopt;
    // Others with these classes are the display adapters of management controllers.
    switch (pci.vendor_id) {
      case pci_nvidia:
        return Vendor::nvidia;
      case pci_amd:
        return Vendor::amd;
      case pci_intel:
        // 00:02.0 is where the graphics inside Intel's processors stand.
        if (id.bus == 0 && id.device == 2 && pci.class_id == 0x0300) return std::nullopt;
        return Vendor::intel;
      default:
        return std::nullopt;
    }
  }

  void read_gpus(Object d, const PciId& id, const Place& place) {
    const auto vendor = gpu_vendor(d->attr->pcidev, id);
    if (!vendor) return;
    bool driven = false, renders = false;
    std::vector<Object> rsmi;  // several below one function: the GPU is partitioned
    std::string uuid;
    for (Object o = d->io_first_child; o; o = o->next_sibling) {
      if (o->type != HWLOC_OBJ_OS_DEVICE || !o->name) continue;
      const std::string_view name(o->name);
      driven = true;
      renders = renders || !(name.starts_with("card") || name.starts_with("controlD"));
      if (name.starts_with("rsmi")) rsmi.push_back(o);
      if (uuid.empty()) uuid = info(o, "NVIDIAUUID");
    }
    // A display only, as in ATI's chips on old server boards.
    if (driven && !renders) return;
    std::sort(rsmi.begin(), rsmi.end(), [](Object x, Object y) {
      return std::make_pair(std::strlen(x->name), std::string_view(x->name)) <
             std::make_pair(std::strlen(y->name), std::string_view(y->name));
    });
    const size_t count = std::max<size_t>(rsmi.size(), 1);
    for (size_t i = 0; i < count; ++i) {
      Gpu gpu;
      gpu.pci = id;
      if (count > 1) gpu.partition = static_cast<int>(i);
      gpu.vendor = *vendor;
      gpu.uuid = rsmi.empty() ? uuid : info(rsmi[i], "AMDUUID");
      gpu.place = place;
      gpus_.push_back({std::move(gpu), d, driven});
    }
  }

  // Where some GPUs of a vendor have a driver's devices, those without are not in use here: handed
  // to a virtual machine, or too old for the driver. Where none has, the file just does not say.
  void drop_undriven() {
    std::set<Vendor> driven;
    for (const FoundGpu& f : gpus_)
      if (f.driven) driven.insert(f.gpu.vendor);
    std::erase_if(gpus_,
                  [&](const FoundGpu& f) { return !f.driven && driven.contains(f.gpu.vendor); });
  }

  void read_nics(Object d, const PciId& id, const Place& place) {
    const Pci& pci = d->attr->pcidev;
    bool verbs = false;
    for (Object o = d->io_first_child; o; o = o->next_sibling) {
      if (o->type != HWLOC_OBJ_OS_DEVICE || !o->name) continue;
      if (o->attr->osdev.type != HWLOC_OBJ_OSDEV_OPENFABRICS) continue;
      verbs = true;
      bool any = false;
      for (int port = 1; port <= 8; ++port) {
        const std::string prefix = "Port" + std::to_string(port);
        if (info(o, prefix + "State").empty()) continue;
        any = true;
        add_port(d, o, port, id, place);
      }
      if (!any) add_port(d, o, 1, id, place);
    }
    if (verbs || pci.vendor_id != pci_slingshot || pci.class_id != 0x0200) return;
    for (Object o = d->io_first_child; o; o = o->next_sibling) {
      if (o->type != HWLOC_OBJ_OS_DEVICE || !o->name) continue;
      if (o->attr->osdev.type != HWLOC_OBJ_OSDEV_NETWORK) continue;
      Nic nic;
      nic.name = o->name;
      nic.verbs = false;
      nic.link_layer = LinkLayer::slingshot;
      add(std::move(nic), d, id, place);
    }
  }

  void add_port(Object d, Object o, int port, const PciId& id, const Place& place) {
    const std::string prefix = "Port" + std::to_string(port);
    const Pci& pci = d->attr->pcidev;
    Nic nic;
    nic.name = o->name;
    nic.port = port;
    nic.verbs = pci.vendor_id != pci_amazon && pci.vendor_id != pci_cisco;
    const std::string state = info(o, prefix + "State");
    nic.active = state.empty() || state == "4";
    // Only newer files name the link layer and the rate.
    nic.link_layer = parse_link_layer(info(o, prefix + "LinkLayer"));
    nic.rate_gbps = parse_rate(info(o, prefix + "Rate"));
    if (pci.vendor_id == pci_intel && nic.name.starts_with("hfi1"))
      nic.link_layer = LinkLayer::omni_path;
    if (nic.link_layer == LinkLayer::unknown) {
      const std::string lid = info(o, prefix + "LID");
      // An InfiniBand port that is up has a local identifier.
      const bool identified = !lid.empty() && lid != "0x0";
      if (pci.class_id == 0x0207 || pci.class_id == 0x0c06 || identified)
        nic.link_layer = LinkLayer::infiniband;
      else if (pci.class_id == 0x0200 || (nic.active && lid == "0x0"))
        nic.link_layer = LinkLayer::ethernet;
    }
    add(std::move(nic), d, id, place);
  }

  void add(Nic nic, Object d, const PciId& id, const Place& place) {
    nic.pci = id;
    nic.vendor = d->attr->pcidev.vendor_id;
    nic.place = place;
    if (live_) read_port_state(nic);
    nics_.push_back({std::move(nic), d});
  }

  void sort_devices() {
    drop_undriven();
    std::stable_sort(gpus_.begin(), gpus_.end(),
                     [](const FoundGpu& a, const FoundGpu& b) { return a.gpu.pci < b.gpu.pci; });
    std::stable_sort(nics_.begin(), nics_.end(), [](const FoundNic& a, const FoundNic& b) {
      return std::tie(a.nic.pci, a.nic.port) < std::tie(b.nic.pci, b.nic.port);
    });
    for (FoundGpu& f : gpus_) {
      f.gpu.index = static_cast<int>(m_.gpus.size());
      std::vector<Near> row;
      for (const FoundNic& n : nics_) row.push_back(near(f.pci, f.gpu.place, n.pci, n.nic.place));
      m_.near.push_back(std::move(row));
      m_.gpus.push_back(std::move(f.gpu));
    }
    for (FoundNic& f : nics_) m_.nics.push_back(std::move(f.nic));
  }

  Near near(Object a, const Place& at_a, Object b, const Place& at_b) const {
    std::map<Object, int> above_a;  // bridge -> bridges passed below it
    int depth = 0;
    for (Object o = a->parent; o && o->type == HWLOC_OBJ_BRIDGE; o = o->parent)
      above_a.emplace(o, depth++);
    depth = 0;
    for (Object o = b->parent; o && o->type == HWLOC_OBJ_BRIDGE; o = o->parent, ++depth) {
      const auto common = above_a.find(o);
      if (common == above_a.end()) continue;
      const int steps = common->second + depth;
      if (o->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST) return {Level::phb, steps};
      return {std::max(common->second, depth) <= 1 ? Level::pix : Level::pxb, steps};
    }
    if (at_a.numa >= 0 && at_a.numa == at_b.numa) return {Level::node, 0};
    const int package = package_of(at_a);
    return {Level::sys, package >= 0 && package == package_of(at_b) ? 0 : 1};
  }

  // The package that holds all of a place; -1 when none does.
  int package_of(const Place& place) const {
    int package = -1;
    for (const Core& core : m_.cores) {
      if (!place.cpus.test(static_cast<size_t>(core.cpus.front()))) continue;
      if (package >= 0 && core.package != package) return -1;
      package = core.package;
    }
    return package;
  }

  hwloc_topology_t t_;
  bool live_;
  Machine m_;
  std::vector<FoundGpu> gpus_;
  std::vector<FoundNic> nics_;
};

Result<Machine> read_xml(const std::string& text) {
  auto t = prepare();
  if (!t) return forward(t);
  // The size counts the terminating zero.
  const int size = static_cast<int>(text.size() + 1);
  if (hwloc_topology_set_xmlbuffer(t->get(), text.c_str(), size) != 0 ||
      hwloc_topology_load(t->get()) != 0)
    return fail("hwloc cannot read it (cut off, damaged, or of a newer version than 2)");
  auto machine = Reader(t->get(), false).read();
  if (machine) machine->kind = "hwloc-xml";
  return machine;
}

}  // namespace

Result<Machine> machine_from_hwloc_xml(const std::string& text, const std::string& name) {
  const auto bad = [&](const std::string& why) {
    return fail(name + ": not a usable hwloc topology: " + why, exit_code::usage);
  };
  // hwloc trusts its own files: damaged ones meet assertions, and worse.
  const std::string wrong = try_in_child([&] {
    const auto tried = read_xml(text);
    return tried ? std::string() : tried.error().what;
  });
  if (!wrong.empty()) return bad(wrong);
  auto machine = read_xml(text);
  if (!machine) return bad(machine.error().what);
  machine->file = name;
  return machine;
}

Result<Machine> machine_from_this_host() {
  auto t = prepare();
  if (!t) return forward(t);
  {
#ifdef __SANITIZE_ADDRESS__
    const __lsan::ScopedDisabler not_ours;  // libpciaccess never frees its tables
#endif
    if (hwloc_topology_load(t->get()) != 0) return fail("hwloc cannot read this machine");
  }
  auto machine = Reader(t->get(), true).read();
  if (!machine) return fail("hwloc reads this machine, but: " + machine.error().what);
  machine->kind = "live";
  return machine;
}

}  // namespace trainlaunch
