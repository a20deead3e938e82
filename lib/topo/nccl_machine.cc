#include "topo/nccl_machine.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <pugixml.hpp>
#include <set>

#include "topo/assemble.h"

namespace trainlaunch {
namespace {

// NCCL itself reads 1024 elements at most, and nests them by switches.
constexpr int max_depth = 64;
constexpr size_t max_functions = 16384, max_nodes = 1024;

constexpr uint16_t pci_nvidia = 0x10de, pci_amd = 0x1002, pci_intel = 0x8086;
constexpr uint16_t pci_slingshot = 0x17db, pci_amazon = 0x1d0f;

class Reader {
 public:
  Reader(const std::string& text, const std::string& name) : text_(text), name_(name) {}

  Result<Machine> read() {
    pugi::xml_document document;
    // No document types, so no entities: they stay the text they are.
    const auto parsed = document.load_buffer(text_.data(), text_.size());
    if (!parsed) return bad(parsed.offset, lower(parsed.description()));
    const auto system = document.child("system");
    if (!system) return bad(0, "no <system> element, which NCCL's topology files start with");
    m_.kind = "nccl-xml";
    m_.file = name_;
    if (auto s = read_cpus(system); !s) return forward(s);
    int node = 0;
    for (const auto& cpu : system.children("cpu")) {
      const Place& place = places_[static_cast<size_t>(node)];
      const bool known = cpu.attribute("numaid").as_int(-1) >= 0 || m_.knows(place);
      const Spot spot{place, {{}, false, known ? node : -1}};
      if (auto s = read_devices(cpu, spot, 0); !s) return forward(s);
      ++node;
    }
    if (auto s = take_devices(m_, std::move(gpus_), std::move(nics_)); !s)
      return fail(name_ + ": " + s.error().what, exit_code::usage);
    warn_of_missing_cpus(m_);
    if (classless_)
      warn("topology-classes", std::to_string(classless_) +
                                   " PCI functions have no class, so they are neither GPUs nor "
                                   "ports here");
    return std::move(m_);
  }

 private:
  using Node = pugi::xml_node;

  // Where an element stands: below which CPUs and bridges.
  struct Spot {
    Place place;
    Path path;
  };

  static std::string lower(std::string text) {
    if (!text.empty() && text[0] >= 'A' && text[0] <= 'Z')
      text[0] = static_cast<char>(text[0] + 32);
    return text;
  }

  tl::unexpected<Error> bad(ptrdiff_t offset, const std::string& what) const {
    const auto end = text_.begin() + std::clamp<ptrdiff_t>(offset, 0, std::ssize(text_));
    const auto line = 1 + std::count(text_.begin(), end, '\n');
    return fail(name_ + ':' + std::to_string(line) + ": " + what, exit_code::usage);
  }
  tl::unexpected<Error> bad(const Node& at, const std::string& what) const {
    return bad(at.offset_debug(), what);
  }
  // A wrong value, shown short and without anything that could bend a terminal.
  tl::unexpected<Error> bad_value(const Node& at, const char* attribute, const char* want) const {
    std::string value = at.attribute(attribute).value();
    if (value.size() > 40) value = value.substr(0, 40) + "...";
    for (char& c : value)
      if (c < ' ' || c > '~') c = '?';
    return bad(at, std::string(attribute) + "=\"" + value + "\" is not " + want);
  }

  void warn(const std::string& code, const std::string& what) {
    m_.warnings.push_back({code, name_ + ": " + what, "use lstopo --of xml on the machine itself"});
  }

  // A number, or `missing` where there is no such attribute. False: something else.
  static bool number(const Node& at, const char* attribute, int missing, int& value) {
    const std::string_view text = at.attribute(attribute).value();
    value = missing;
    if (text.empty()) return true;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size();
  }

  // "0x10de", "0x030200"; 0 where it is not there.
  static std::optional<uint32_t> hex(const Node& at, const char* attribute) {
    std::string_view text = at.attribute(attribute).value();
    if (text.empty()) return 0;
    if (!text.starts_with("0x")) return std::nullopt;
    text.remove_prefix(2);
    uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
  }

  // Words of up to 32 bits, the highest first: "000000ff,ffffffff".
  static std::optional<CpuSet> mask(std::string_view text) {
    CpuSet cpus;
    size_t base = 0;
    while (!text.empty()) {
      const size_t comma = text.rfind(',');
      const std::string_view word = comma == text.npos ? text : text.substr(comma + 1);
      uint32_t bits = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), bits, 16);
      if (error != std::errc() || end != word.data() + word.size() || word.size() > 8)
        return std::nullopt;
      for (size_t i = 0; i < 32; ++i)
        if (bits >> i & 1) {
          if (base + i >= cpus.size()) return std::nullopt;
          cpus.set(base + i);
        }
      if (comma == 0) return std::nullopt;
      text = comma == text.npos ? std::string_view() : text.substr(0, comma);
      base += 32;
    }
    return cpus;
  }

  Status read_cpus(const Node& system) {
    std::set<int> seen;
    std::string host;
    bool overlap = false, missing = false;
    for (const auto& cpu : system.children("cpu")) {
      if (places_.size() >= max_nodes) return bad(cpu, "too many memory nodes");
      NumaNode n;
      if (!number(cpu, "numaid", -1, n.node) || n.node < -1 || n.node >= max_cpu)
        return bad_value(cpu, "numaid", "the number of a memory node");
      if (n.node >= 0 && !seen.insert(n.node).second)
        return bad(cpu, "memory node " + std::to_string(n.node) +
                            " a second time: a file of several hosts, or two files in one");
      const auto cpus = mask(cpu.attribute("affinity").value());
      if (!cpus)
        return bad_value(cpu, "affinity",
                         ("a mask of CPUs below " + std::to_string(max_cpu)).c_str());
      n.cpus = *cpus;
      missing = missing || n.cpus.none();
      overlap = overlap || (n.cpus & m_.cpus).any();
      m_.cpus |= n.cpus;
      places_.push_back({n.cpus, n.node});
      if (n.cpus.any() && n.node >= 0) m_.numa.push_back(n);
    }
    if (places_.empty()) return bad(system, "no <cpu> element");
    m_.allowed = m_.cpus;
    if (overlap) {
      m_.numa.clear();
      for (Place& p : places_) p = {m_.cpus, -1};
      warn("topology-affinity",
           "several memory nodes have the same CPUs, which cannot be: which CPUs are near what is "
           "unknown");
    } else if (missing) {
      warn("topology-affinity",
           m_.cpus.none() ? "names no CPUs" : "names no CPUs for some of its memory nodes");
    }
    for (Place& p : places_)
      if (p.cpus.none() && p.numa < 0) p.cpus = m_.cpus;
    std::sort(m_.numa.begin(), m_.numa.end(),
              [](const NumaNode& a, const NumaNode& b) { return a.node < b.node; });
    std::vector<CpuSet> groups;
    for (const Place& p : places_) groups.push_back(p.cpus);
    guess_cores(m_, groups);
    return {};
  }

  Status read_devices(const Node& parent, const Spot& spot, int depth) {
    if (depth > max_depth) return bad(parent, "elements nested too deeply");
    for (const auto& child : parent.children()) {
      if (child.type() != pugi::node_element) continue;
      const std::string_view tag = child.name();
      if (tag == "pci") {
        if (auto s = read_function(child, spot, depth); !s) return s;
      } else if (tag == "nic" && depth == 0) {  // a virtual one
        if (auto s = read_ports(child, spot, {}, 0, 0); !s) return s;
      }
    }
    return {};
  }

  Status read_function(const Node& pci, const Spot& spot, int depth) {
    if (++functions_ > max_functions) return bad(pci, "too many PCI functions");
    const auto id = parse_pci(pci.attribute("busid").value());
    if (!id) return bad_value(pci, "busid", "a PCI function such as 0000:06:00.0");
    const auto pci_class = hex(pci, "class");
    if (!pci_class || *pci_class > 0xffffff)
      return bad_value(pci, "class", "a PCI class such as 0x030200");
    const auto vendor = hex(pci, "vendor");
    if (!vendor || *vendor > 0xffff) return bad_value(pci, "vendor", "a PCI vendor such as 0x10de");

    Spot below = spot;
    below.path.bridges.insert(below.path.bridges.begin(), functions_);
    if (auto s = read_devices(pci, below, depth + 1); !s) return s;

    const auto kind = *pci_class >> 16;
    if (kind == 0x03 || kind == 0x12 || pci.child("gpu"))
      return read_gpus(pci, *id, static_cast<uint16_t>(*vendor), *pci_class, spot);
    if (kind == 0x02) return read_nics(pci, *id, *pci_class, static_cast<uint16_t>(*vendor), spot);
    if (*pci_class == 0 && !pci.first_child()) ++classless_;
    return {};
  }

  static std::optional<Vendor> vendor_of(const Node& pci, uint16_t vendor, uint32_t pci_class) {
    switch (vendor) {
      case pci_nvidia:
        return Vendor::nvidia;
      case pci_amd:
        return Vendor::amd;
      case pci_intel:
        return Vendor::intel;
      case 0:  // older files do not say
        if (pci.child("gpu").attribute("gcn") || pci_class >> 8 != 0x0302) return Vendor::amd;
        return Vendor::nvidia;
      default:  // displays of management controllers
        return std::nullopt;
    }
  }

  Status read_gpus(const Node& pci, const PciId& id, uint16_t pci_vendor, uint32_t pci_class,
                   const Spot& spot) {
    const auto vendor = vendor_of(pci, pci_vendor, pci_class);
    if (!vendor) return {};
    const auto parts = std::distance(pci.children("gpu").begin(), pci.children("gpu").end());
    if (gpus_.size() + static_cast<size_t>(parts) > max_gpus)
      return bad(pci, "more than " + std::to_string(max_gpus) + " GPUs");
    if (!gpus_seen_.insert(id).second) return bad(pci, "GPU " + to_string(id) + " a second time");
    for (int i = 0; i < std::max<int>(1, static_cast<int>(parts)); ++i) {
      Gpu gpu;
      gpu.pci = id;
      if (parts > 1) gpu.partition = i;
      gpu.vendor = *vendor;
      gpu.place = spot.place;
      gpus_.push_back({std::move(gpu), spot.path});
    }
    return {};
  }

  Status read_nics(const Node& pci, const PciId& id, uint32_t pci_class, uint16_t vendor,
                   const Spot& spot) {
    if (const auto nic = pci.child("nic")) return read_ports(nic, spot, id, pci_class, vendor);
    Nic nic;
    nic.name = to_string(id);
    nic.named = false;
    add_nic(std::move(nic), id, pci_class, vendor, spot);
    return {};
  }

  Status read_ports(const Node& nic, const Spot& spot, std::optional<PciId> id, uint32_t pci_class,
                    uint16_t vendor) {
    const auto too_many = [&] { return std::max(nics_.size(), m_.nets.size()) >= max_nics; };
    int earlier = 0;
    std::map<std::string, PciId> function_of;
    for (const auto& net : nic.children("net")) {
      if (too_many()) return bad(net, "too many network devices");
      const std::string device = net.attribute("name").value();
      if (!is_device_name(device)) return bad_value(net, "name", "the name of a network device");
      int port = 0, speed = 0;
      if (!number(net, "port", 0, port) || port < 0 || port > 255)
        return bad_value(net, "port", "the number of a port");
      if (!number(net, "speed", 0, speed) || speed < 0 || speed > 100'000'000)
        return bad_value(net, "speed", "a rate in Mb/s");
      const double rate = speed / 1000.0;
      if (port == 0 || !id) {  // NCCL's socket transport
        m_.nets.push_back({device, id, std::nullopt, rate, spot.place});
        continue;
      }
      Nic found;
      found.name = device;
      // NCCL writes the functions of one card as one, and counts on in its ports.
      found.port = std::max(1, port - earlier++);
      PciId function = *id;
      if (port > 1)
        function.function = static_cast<uint8_t>(std::min<size_t>(7, function_of.size()));
      function = function_of.emplace(device, function).first->second;
      found.rate_gbps = rate;
      if (!names_seen_.insert(to_string(found)).second)
        return bad(net, "port " + to_string(found) + " a second time");
      add_nic(std::move(found), function, pci_class, vendor, spot);
    }
    return {};
  }

  void add_nic(Nic nic, const PciId& id, uint32_t pci_class, uint16_t vendor, const Spot& spot) {
    nic.pci = id;
    nic.vendor = vendor;
    nic.place = spot.place;
    if (nic.named) nic.link_layer = layer_of_name(nic.name);
    if (vendor == pci_slingshot) nic.link_layer = LinkLayer::slingshot;
    if (nic.link_layer == LinkLayer::unknown)
      nic.link_layer = pci_class >> 8 == 0x0207 ? LinkLayer::infiniband : LinkLayer::ethernet;
    nic.verbs = nic.named && vendor != pci_amazon && nic.link_layer != LinkLayer::slingshot &&
                !nic.name.starts_with("rdmap");
    nics_.push_back({std::move(nic), spot.path});
  }

  const std::string& text_;
  const std::string& name_;
  Machine m_;
  std::vector<Place> places_;  // of each <cpu>
  std::vector<FoundGpu> gpus_;
  std::vector<FoundNic> nics_;
  std::set<PciId> gpus_seen_;
  std::set<std::string> names_seen_;
  size_t functions_ = 0, classless_ = 0;
};

}  // namespace

Result<Machine> machine_from_nccl_xml(const std::string& text, const std::string& name) {
  return Reader(text, name).read();
}

}  // namespace trainlaunch
