#include "topo/hwloc_reader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <string_view>
#include <tuple>

#include "topo/assemble.h"
#include "topo/host.h"

namespace trainlaunch {
namespace {

using Object = hwloc_obj_t;
using Pci = hwloc_obj_attr_u::hwloc_pcidev_attr_s;

constexpr uint16_t pci_nvidia = 0x10de, pci_amd = 0x1002, pci_intel = 0x8086;
// Fabrics whose devices NCCL and UCX do not open themselves.
constexpr uint16_t pci_slingshot = 0x17db, pci_amazon = 0x1d0f, pci_cisco = 0x1137;
constexpr uint16_t pci_mellanox = 0x15b3;

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

// Reads a loaded topology into a Machine.
class Reader {
 public:
  explicit Reader(hwloc_topology_t t) : t_(t) {}

  Result<Machine> read() {
    if (auto s = read_cpus(); !s) return forward(s);
    read_cores();
    for (Object d = nullptr; (d = hwloc_get_next_pcidev(t_, d));) {
      if (auto s = read_device(d); !s) return forward(s);
    }
    drop_undriven();
    mark_virtual_functions();
    std::vector<FoundGpu> gpus;
    for (DrivenGpu& g : gpus_) gpus.push_back(std::move(g.found));
    if (auto s = take_devices(m_, std::move(gpus), std::move(nics_)); !s) return forward(s);
    return std::move(m_);
  }

 private:
  struct DrivenGpu {
    FoundGpu found;
    bool driven;  // some driver has made a device of it
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
    if (gpus_.size() > max_gpus || nics_.size() > max_nics) return {};  // refused later
    read_gpus(d, id, place);
    read_nets(d, id, place);
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
      gpus_.push_back({{std::move(gpu), path_of(d, place)}, driven});
    }
  }

  // Where some GPUs of a vendor have a driver's devices, those without are not in use here: handed
  // to a virtual machine, or too old for the driver. Where none has, the file just does not say.
  void drop_undriven() {
    std::set<Vendor> driven;
    for (const DrivenGpu& g : gpus_)
      if (g.driven) driven.insert(g.found.gpu.vendor);
    std::erase_if(gpus_, [&](const DrivenGpu& g) {
      return !g.driven && driven.contains(g.found.gpu.vendor);
    });
  }

  // Network devices of a function, for sockets.
  void read_nets(Object d, const PciId& id, const Place& place) {
    for (const std::string& name : devices_of(d, HWLOC_OBJ_OSDEV_NETWORK))
      if (m_.nets.size() < max_nics) m_.nets.push_back({name, id, std::nullopt, 0, place});
  }

  static std::vector<std::string> devices_of(Object d, hwloc_obj_osdev_type_t type) {
    std::vector<std::string> names;
    for (Object o = d->io_first_child; o; o = o->next_sibling)
      if (o->type == HWLOC_OBJ_OS_DEVICE && o->name && o->attr->osdev.type == type &&
          is_device_name(o->name))
        names.emplace_back(o->name);
    return names;
  }

  void read_nics(Object d, const PciId& id, const Place& place) {
    const Pci& pci = d->attr->pcidev;
    if (pci.vendor_id == pci_slingshot && pci.class_id == 0x0200)
      return read_slingshot(d, id, place);
    for (Object o = d->io_first_child; o; o = o->next_sibling) {
      if (o->type != HWLOC_OBJ_OS_DEVICE || !o->name || !is_device_name(o->name)) continue;
      if (o->attr->osdev.type != HWLOC_OBJ_OSDEV_OPENFABRICS) continue;
      bool any = false;
      for (int port = 1; port <= 8; ++port) {
        const std::string prefix = "Port" + std::to_string(port);
        if (info(o, prefix + "State").empty()) continue;
        any = true;
        add_port(d, o, port, id, place);
      }
      if (!any) add_port(d, o, 1, id, place);
    }
  }

  // Known by its network device (hsi0); newer hwloc lists a cxi0 beside it.
  void read_slingshot(Object d, const PciId& id, const Place& place) {
    auto names = devices_of(d, HWLOC_OBJ_OSDEV_NETWORK);
    if (names.empty()) names = devices_of(d, HWLOC_OBJ_OSDEV_OPENFABRICS);
    for (const std::string& name : names) {
      Nic nic;
      nic.name = name;
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
    nic.device = d->attr->pcidev.device_id;
    nic.place = place;
    nic.nets = devices_of(d, HWLOC_OBJ_OSDEV_NETWORK);
    nics_.push_back({std::move(nic), path_of(d, place)});
  }

  // The bridges above a PCI function.
  static Path path_of(Object d, const Place& place) {
    Path path;
    path.node = place.numa;
    for (Object o = d->parent; o && o->type == HWLOC_OBJ_BRIDGE; o = o->parent) {
      path.bridges.push_back(reinterpret_cast<uintptr_t>(o));
      path.host = o->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST;
      if (path.host) break;
    }
    return path;
  }

  // In a virtual machine each port may be a virtual function, and is then as good as any. Where the
  // physical one is here too they are its copies. Mellanox's have device numbers of their own.
  void mark_virtual_functions() {
    constexpr std::array<uint16_t, 7> virtual_ids{0x1014, 0x1016, 0x1018, 0x101a,
                                                  0x101c, 0x101e, 0xa2d3};
    const auto is_virtual = [&](const Nic& nic) {
      return nic.vendor == pci_mellanox &&
             std::find(virtual_ids.begin(), virtual_ids.end(), nic.device) != virtual_ids.end();
    };
    std::set<std::pair<uint32_t, uint8_t>> physical;  // domain and bus
    for (const FoundNic& f : nics_)
      if (f.nic.vendor == pci_mellanox && !is_virtual(f.nic))
        physical.emplace(f.nic.pci.domain, f.nic.pci.bus);
    for (FoundNic& f : nics_)
      f.nic.virtual_function =
          is_virtual(f.nic) && physical.contains({f.nic.pci.domain, f.nic.pci.bus});
  }

  hwloc_topology_t t_;
  Machine m_;
  std::vector<DrivenGpu> gpus_;
  std::vector<FoundNic> nics_;
};

}  // namespace

Result<Machine> read_hwloc(hwloc_topology_t topology) { return Reader(topology).read(); }

}  // namespace trainlaunch
