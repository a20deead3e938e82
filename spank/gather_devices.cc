#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>

#include "gather.h"

namespace trainlaunch {
namespace {

std::string node_of(const Gpu& gpu) {
  if (!gpu.minor) return "";
  return (gpu.vendor == Vendor::nvidia ? "/dev/nvidia" : "/dev/dri/renderD") +
         std::to_string(*gpu.minor);
}

// Asked, not tried: to open a GPU may wake it up. A device cgroup has its say here too.
bool opens(const std::string& device) {
  return faccessat(AT_FDCWD, device.c_str(), R_OK | W_OK, AT_EACCESS) == 0;
}

// The CPUs of the package that holds those beside a device; nothing when there are several.
CpuSet socket_of(const Machine& m, const Place& place) {
  CpuSet out;
  int package = -1;
  for (const Core& c : m.cores) {
    const bool beside = std::any_of(c.cpus.begin(), c.cpus.end(), [&](int cpu) {
      return place.cpus.test(static_cast<size_t>(cpu));
    });
    if (!beside) continue;
    if (package >= 0 && c.package != package) return {};
    package = c.package;
  }
  for (const Core& c : m.cores)
    if (c.package == package)
      for (int cpu : c.cpus) out.set(static_cast<size_t>(cpu));
  return out;
}

GpuFacts facts_of(const Machine& m, const Gpu& gpu, bool here) {
  GpuFacts g;
  if (gpu.place.numa >= 0) g.numa = gpu.place.numa;
  g.index = gpu.index;
  g.vendor = name_of(gpu.vendor);
  if (m.knows(gpu.place)) {
    g.cpus = to_list(gpu.place.cpus);
    g.socket = to_list(socket_of(m, gpu.place));
  }
  if (here) g.device = node_of(gpu);
  if (!g.device.empty()) g.opens = opens(g.device);
  const auto& near = m.near[static_cast<size_t>(gpu.index)];
  for (size_t n = 0; n < m.nics.size(); ++n)
    if (near[n].level != Level::sys) g.near[to_string(m.nics[n])] = name_of(near[n].level);
  return g;
}

PortFacts facts_of(const Nic& nic, const NicChoice& choice) {
  PortFacts p;
  if (nic.place.numa >= 0) p.numa = nic.place.numa;
  if (nic.link_layer != LinkLayer::unknown) p.link_layer = name_of(nic.link_layer);
  p.gbps = nic.rate_gbps;
  p.up = nic.active;
  p.verbs = nic.verbs;
  p.opens = nic.opens;
  p.used = choice.used;
  p.why = choice.why;
  return p;
}

// Virtual interfaces come by the hundred on some nodes: those that carry nothing are left out.
bool is_card(const std::string& name) {
  return access(("/sys/class/net/" + name + "/device").c_str(), F_OK) == 0;
}

std::map<std::string, bool> interfaces() {
  std::map<std::string, bool> out;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return out;
  for (const ifaddrs* a = all; a; a = a->ifa_next) {
    const bool address =
        a->ifa_addr && (a->ifa_addr->sa_family == AF_INET || a->ifa_addr->sa_family == AF_INET6);
    const bool usable = address && (a->ifa_flags & IFF_RUNNING);
    bool& known = out[a->ifa_name];
    known = known || usable;
  }
  freeifaddrs(all);
  std::erase_if(out, [](const auto& i) { return !i.second && !is_card(i.first); });
  return out;
}

const std::string* value(const std::map<std::string, std::string>& env, const char* name) {
  const auto at = env.find(name);
  return at == env.end() ? nullptr : &at->second;
}

// One mask after another: what a second one numbers is what the first left.
void mask(std::vector<std::string>& visible, const std::string& value,
          const std::map<std::string, std::string>& words) {
  const std::vector<std::string> all = visible;
  visible.clear();
  for (const std::string& word : words_between(value, ',')) {
    if (word == "-1" || word == "NoDevFiles" || word == "void" || word == "none") break;
    size_t n = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), n);
    const bool number = error == std::errc() && end == word.data() + word.size();
    if (const auto known = words.find(word); known != words.end())
      visible.push_back(known->second);
    else if (!number)
      visible.push_back(word);
    else if (n < all.size())
      visible.push_back(all[n]);
    else
      break;  // as CUDA does: a number that names nothing ends the list
  }
}

std::vector<std::string> visible_gpus(const RankFacts& f, const Machine& m,
                                      const std::map<std::string, int>& words) {
  std::vector<std::string> visible;
  for (const Gpu& g : m.gpus)
    if (f.gpus.at(to_string(g)).opens.value_or(true)) visible.push_back(to_string(g));
  if (m.gpus.empty()) return visible;
  std::map<std::string, std::string> names;
  for (const auto& [word, gpu] : words) names[word] = to_string(m.gpus[static_cast<size_t>(gpu)]);
  for (const Gpu& g : m.gpus)
    if (!g.uuid.empty()) names.emplace(g.uuid, to_string(g));

  switch (m.gpus.front().vendor) {
    case Vendor::nvidia:
      if (const auto* v = value(f.env, "CUDA_VISIBLE_DEVICES")) mask(visible, *v, names);
      break;
    case Vendor::amd:
      if (const auto* v = value(f.env, "ROCR_VISIBLE_DEVICES")) mask(visible, *v, names);
      // HIP takes the one or the other, and numbers what ROCR left.
      if (const auto* v = value(f.env, "HIP_VISIBLE_DEVICES"))
        mask(visible, *v, {});
      else if (const auto* w = value(f.env, "CUDA_VISIBLE_DEVICES"))
        mask(visible, *w, {});
      break;
    case Vendor::intel:
      if (const auto* v = value(f.env, "ZE_AFFINITY_MASK")) mask(visible, *v, names);
      break;
  }
  return visible;
}

// x86 processors say so themselves; others may leave it to the firmware's name.
bool in_virtual_machine() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("flags")) return (line + ' ').find(" hypervisor ") != std::string::npos;
  return access("/sys/hypervisor/type", F_OK) == 0;
}

int cores_of(const Machine& m, const std::string& cpus) {
  const auto set = parse_cpus(cpus);
  if (!set) return 0;
  return static_cast<int>(std::count_if(m.cores.begin(), m.cores.end(), [&](const Core& c) {
    return std::any_of(c.cpus.begin(), c.cpus.end(),
                       [&](int cpu) { return set->test(static_cast<size_t>(cpu)); });
  }));
}

}  // namespace

void gather_devices(RankFacts& f, const Machine& m, const std::vector<NicChoice>& nics,
                    const std::map<std::string, int>& words) {
  // A machine in a file has other devices than those that could be opened here.
  const bool here = m.kind == "live";
  f.source = m.kind;
  f.machine_cpus = to_list(m.cpus);
  f.virtual_machine = here && in_virtual_machine();
  f.numa_nodes = static_cast<int>(m.numa.size());
  f.cores = cores_of(m, f.cpus);
  for (const Gpu& g : m.gpus) f.gpus[to_string(g)] = facts_of(m, g, here);
  for (size_t n = 0; n < m.nics.size(); ++n)
    f.ports[to_string(m.nics[n])] = facts_of(m.nics[n], nics[n]);
  f.interfaces = interfaces();
  f.visible = visible_gpus(f, m, words);
}

}  // namespace trainlaunch
