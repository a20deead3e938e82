#include "topo/host.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include "base/file.h"
#include "base/text.h"
#include "topo/assemble.h"
#include "topo/lines.h"

namespace trainlaunch {
namespace {

namespace fs = std::filesystem;

// Files of sysfs and procfs are small, and what we want stands at their beginning.
std::string read_small(const std::string& path) {
  // In a copied tree a name may be anything, a pipe too.
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat st {};
  if (!fd || fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode)) return {};
  std::string text(8192, '\0');
  const ssize_t n = read(fd.get(), text.data(), text.size());
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return text;
}

std::string first_line(const std::string& path) {
  const std::string text = read_small(path);
  return std::string(trim(std::string_view(text).substr(0, text.find('\n'))));
}

std::optional<long> number_in(const std::string& path) {
  const std::string text = first_line(path);
  long number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// The names in a folder, sorted: its order on disk is no order.
std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error) || fs::is_symlink(path, error);
}

// The N of prefixN; nothing when the name is another.
std::optional<int> number_after(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  int number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (name.empty() || error != std::errc() || end != name.data() + name.size() || number < 0)
    return std::nullopt;
  return number;
}

class Facts {
 public:
  Facts(Machine& m, const std::string& root)
      : m_(m),
        root_(root),
        class_net_(root + "/sys/class/net/"),
        class_ib_(root + "/sys/class/infiniband/"),
        functions_(root + "/sys/bus/pci/devices/") {}

  void add() {
    split_amd();
    for (Gpu& gpu : m_.gpus)
      if (!gpu.minor) gpu.minor = minor_of(gpu);
    for (Nic& nic : m_.nics) add_port(nic);
    for (Net& net : m_.nets) add_net(net);
    add_other_nets();
  }

 private:
  std::optional<int> minor_of(const Gpu& gpu) const {
    if (gpu.vendor == Vendor::nvidia) {
      const std::string text =
          read_small(root_ + "/proc/driver/nvidia/gpus/" + to_string(gpu.pci) + "/information");
      for (const Line& line : useful_lines(text)) {
        const auto all = words(line.text);
        if (all.size() == 3 && all[0] == "Device" && all[1] == "Minor:")
          return number_after(all[2], "");
      }
      return std::nullopt;
    }
    if (gpu.partition) return std::nullopt;  // their nodes stand elsewhere
    for (const std::string& name : names_in(functions_ + to_string(gpu.pci) + "/drm"))
      if (const auto minor = number_after(name, "renderD")) return minor;
    return std::nullopt;
  }

  void add_port(Nic& nic) const {
    nic.virtual_function =
        nic.virtual_function || exists(functions_ + to_string(nic.pci) + "/physfn");
    if (nic.link_layer == LinkLayer::slingshot) return add_slingshot(nic);
    const std::string device = class_ib_ + nic.name;
    const std::string port = device + "/ports/" + std::to_string(nic.port);
    const std::string state = first_line(port + "/state");  // "4: ACTIVE"
    if (!state.empty()) nic.active = state.starts_with("4:");
    if (const double rate = parse_rate(first_line(port + "/rate")); rate > 0) nic.rate_gbps = rate;
    // Omni-Path says "InfiniBand" here too.
    if (nic.link_layer != LinkLayer::omni_path)
      if (const LinkLayer layer = parse_link_layer(first_line(port + "/link_layer"));
          layer != LinkLayer::unknown)
        nic.link_layer = layer;
    if (auto nets = nets_of(device, port, nic.port); !nets.empty()) nic.nets = std::move(nets);
  }

  void add_slingshot(Nic& nic) const {
    const std::string net = nic.nets.empty() ? nic.name : nic.nets.front();
    if (const std::string state = first_line(class_net_ + net + "/operstate"); !state.empty())
      nic.active = state == "up";
    if (const double rate = speed_of(net); rate > 0) nic.rate_gbps = rate;
  }

  // With RoCE the kernel names the device that a port's addresses belong to, which may be a bond;
  // otherwise a function's network devices tell their port.
  std::vector<std::string> nets_of(const std::string& device, const std::string& port,
                                   int number) const {
    const std::string roce = first_line(port + "/gid_attrs/ndevs/0");
    if (is_device_name(roce)) return {roce};
    std::vector<std::string> nets;
    for (const std::string& name : names_in(device + "/device/net")) {
      const std::string net = device + "/device/net/" + name;
      const auto from_zero = number_in(net + "/dev_port");
      if (!from_zero || *from_zero == number - 1) nets.push_back(name);
    }
    return nets;
  }

  // In Gb/s; 0 where the kernel does not know (-1), or there is no carrier.
  double speed_of(const std::string& net) const {
    const long mbps = number_in(class_net_ + net + "/speed").value_or(0);
    return mbps > 0 && mbps < 100'000'000 ? static_cast<double>(mbps) / 1000 : 0;
  }

  void add_net(Net& net) const {
    // Reading it fails on an interface that is down.
    const std::string state = first_line(class_net_ + net.name + "/operstate");
    if (state == "up" || state == "down" || state == "lowerlayerdown") net.up = state == "up";
    if (const auto carrier = number_in(class_net_ + net.name + "/carrier")) net.up = *carrier == 1;
    if (const double rate = speed_of(net.name); rate > 0) net.rate_gbps = rate;
  }

  void add_other_nets() {
    constexpr long loopback = 772;
    for (const std::string& name : names_in(class_net_)) {
      if (m_.nets.size() >= max_nics) return;
      if (!is_device_name(name) || number_in(class_net_ + name + "/type") == loopback) continue;
      if (!exists(class_net_ + name + "/operstate")) continue;  // bonding_masters
      if (std::any_of(m_.nets.begin(), m_.nets.end(), [&](const Net& n) { return n.name == name; }))
        continue;
      Net net;
      net.name = name;
      std::error_code error;
      const fs::path device = fs::read_symlink(class_net_ + name + "/device", error);
      if (!error) net.pci = parse_pci(device.filename().string());
      net.place = {m_.cpus, -1};
      add_net(net);
      m_.nets.push_back(std::move(net));
    }
  }

  // A GPU as AMD's driver sees it; those of one function are its partitions.
  struct KfdNode {
    std::optional<int> minor;
    std::string uuid;
  };

  // location_id is bus, device and function; the low bits may number partitions.
  static PciId location(uint64_t domain, uint64_t location_id) {
    return {static_cast<uint32_t>(domain), static_cast<uint8_t>(location_id >> 8),
            static_cast<uint8_t>(location_id >> 3 & 0x1f), 0};
  }

  std::map<PciId, std::vector<KfdNode>> kfd_nodes() const {
    const std::string nodes = root_ + "/sys/class/kfd/kfd/topology/nodes/";
    std::vector<int> numbers;
    for (const std::string& name : names_in(nodes))
      if (const auto number = number_after(name, "")) numbers.push_back(*number);
    std::sort(numbers.begin(), numbers.end());
    std::map<PciId, std::vector<KfdNode>> out;
    for (int number : numbers) {
      std::map<std::string, uint64_t> value;
      for (const Line& line :
           useful_lines(read_small(nodes + std::to_string(number) + "/properties"))) {
        const auto all = words(line.text);
        uint64_t v = 0;
        if (all.size() == 2 &&
            std::from_chars(all[1].data(), all[1].data() + all[1].size(), v).ec == std::errc())
          value.emplace(all[0], v);
      }
      if (value["simd_count"] == 0 || value["location_id"] == 0) continue;  // a CPU
      KfdNode node;
      if (value["drm_render_minor"] > 0) node.minor = static_cast<int>(value["drm_render_minor"]);
      if (const uint64_t id = value["unique_id"]) {
        char text[24];
        std::snprintf(text, sizeof text, "GPU-%016llx", static_cast<unsigned long long>(id));
        node.uuid = text;
      }
      auto& same = out[location(value["domain"], value["location_id"])];
      if (same.size() < max_gpus) same.push_back(std::move(node));
    }
    return out;
  }

  void split_amd() {
    auto nodes = kfd_nodes();
    if (nodes.empty()) return;
    split_gpus(m_, [&](const Gpu& whole) {
      PciId slot = whole.pci;
      slot.function = 0;
      const auto found = nodes.find(slot);
      if (whole.vendor != Vendor::amd || whole.partition || found == nodes.end())
        return std::vector<Gpu>{whole};
      std::vector<Gpu> parts;
      for (const KfdNode& node : found->second) {
        Gpu gpu = whole;
        if (found->second.size() > 1) gpu.partition = static_cast<int>(parts.size());
        gpu.minor = node.minor;
        if (gpu.uuid.empty()) gpu.uuid = node.uuid;
        parts.push_back(std::move(gpu));
      }
      return parts;
    });
  }

  Machine& m_;
  const std::string& root_;
  const std::string class_net_, class_ib_, functions_;
};

}  // namespace

double parse_rate(std::string_view text) {
  double gbps = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), gbps);
  if (error != std::errc() || !(gbps >= 0 && gbps <= 1e6)) return 0;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return text.starts_with(" Gb/sec") ? gbps : 0;
}

LinkLayer parse_link_layer(std::string_view text) {
  if (text == "InfiniBand") return LinkLayer::infiniband;
  if (text == "Ethernet") return LinkLayer::ethernet;
  return LinkLayer::unknown;
}

void add_host_facts(Machine& machine, const std::string& root) { Facts(machine, root).add(); }

void try_ports(Machine& machine, const std::string& root) {
  const std::string verbs = root + "/sys/class/infiniband_verbs/";
  std::map<std::string, bool> opens;
  for (const std::string& name : names_in(verbs)) {
    const std::string device = first_line(verbs + name + "/ibdev");
    if (device.empty()) continue;
    const Fd fd(open((root + "/dev/infiniband/" + name).c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
    opens[device] = static_cast<bool>(fd);
  }
  for (Nic& nic : machine.nics)
    if (nic.verbs) nic.opens = opens.contains(nic.name) && opens[nic.name];
}

}  // namespace trainlaunch
