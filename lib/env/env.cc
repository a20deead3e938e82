#include "env/env.h"

#include <algorithm>
#include <map>
#include <set>

#include "env/nccl_topology.h"

namespace trainlaunch {
namespace {

constexpr size_t nccl_max_hcas = 32;
constexpr uint16_t pci_amazon = 0x1d0f;

std::string join(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& w : words) out += (out.empty() ? "" : ",") + w;
  return out;
}

bool is_number(const std::string& word) {
  return !word.empty() && std::all_of(word.begin(), word.end(),
                                      [](unsigned char c) { return c >= '0' && c <= '9'; });
}

class Builder {
 public:
  Builder(const Machine& m, const Plan& plan, const EnvOptions& options)
      : m_(m), plan_(plan), o_(options) {
    env_.ranks.resize(plan.ranks.size());
  }

  Environment run() {
    devices();
    if (o_.mode == EnvMode::off) {
      env_.notes.push_back("network variables: env off");
      return std::move(env_);
    }
    ports();
    sockets();
    topology_file();
    site();
    return std::move(env_);
  }

 private:
  void add(std::vector<Variable>& to, std::string name, std::string value, Source source,
           std::string why) const {
    to.push_back(
        {std::move(name), std::move(value), o_.mode == EnvMode::set, source, std::move(why)});
  }
  const Nic& nic(int n) const { return m_.nics[static_cast<size_t>(n)]; }

  // The GPU's name in Slurm's words.
  std::string word(int gpu) const {
    if (o_.devices.empty()) {
      // An instance has no number of its own.
      const std::string& mig = m_.gpus[static_cast<size_t>(gpu)].mig;
      return mig.empty() ? std::to_string(gpu) : mig;
    }
    const auto at = std::find(plan_.gpus.begin(), plan_.gpus.end(), gpu) - plan_.gpus.begin();
    return o_.devices[static_cast<size_t>(at)];
  }
  std::vector<std::string> words(const std::vector<int>& gpus) const {
    std::vector<std::string> out;
    for (int g : gpus) out.push_back(word(g));
    return out;
  }

  void devices() {
    if (!plan_.binds_gpus) return;
    if (!o_.devices.empty() && o_.devices.size() != plan_.gpus.size()) {
      env_.notes.push_back("devices: Slurm names " + std::to_string(o_.devices.size()) + " for " +
                           std::to_string(plan_.gpus.size()) + " GPUs: left alone");
      return;
    }
    const Vendor vendor = m_.gpus[static_cast<size_t>(plan_.gpus.front())].vendor;
    for (int g : plan_.gpus)
      if (m_.gpus[static_cast<size_t>(g)].vendor != vendor) {
        env_.notes.push_back("devices: GPUs of two vendors: left alone");
        return;
      }
    const bool ordered = !plan_.gpu_order.empty();
    const char* name = "CUDA_VISIBLE_DEVICES";
    if (vendor == Vendor::amd) name = "ROCR_VISIBLE_DEVICES";
    if (vendor == Vendor::intel) {
      if (ordered) {
        env_.notes.push_back(std::is_sorted(plan_.gpu_order.begin(), plan_.gpu_order.end())
                                 ? "ZE_AFFINITY_MASK: Slurm's names the step's GPUs in this order"
                                 : "devices: ZE_AFFINITY_MASK cannot order GPUs: left alone");
        return;
      }
      name = "ZE_AFFINITY_MASK";
    }
    // Where gres.conf does not name the GPUs' type, Slurm sets the masks of all vendors. HIP would
    // look for their numbers among the GPUs that ROCR_VISIBLE_DEVICES has left.
    if (vendor == Vendor::amd) env_.unset = {"CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"};
    // Slurm sets these in every task, so keeping what is there would change nothing.
    const auto give = [&](std::vector<Variable>& to, const std::vector<int>& gpus,
                          const char* why) {
      const auto list = words(gpus);
      to.push_back({name, join(list), true, Source::topology, why});
      if (vendor == Vendor::nvidia && std::all_of(list.begin(), list.end(), is_number))
        to.push_back({"CUDA_DEVICE_ORDER", "PCI_BUS_ID", true, Source::topology,
                      "the numbers count in PCI order"});
    };
    if (ordered) {
      give(env_.common, plan_.gpu_order, "all GPUs of the step, each rank's own at LOCAL_RANK");
      return;
    }
    for (size_t i = 0; i < plan_.ranks.size(); ++i)
      give(env_.ranks[i], plan_.ranks[i].gpus, "the rank's own GPUs");
  }

  // The ports among `nics` that libraries can be told of by name. A name with a separator in it
  // would be taken for several.
  std::vector<int> nameable(const std::vector<int>& nics) const {
    std::vector<int> out;
    for (int n : nics)
      if (nic(n).verbs && nic(n).named && nic(n).name.find_first_of(",:=^ ") == std::string::npos)
        out.push_back(n);
    return out;
  }
  std::string names(const std::vector<int>& nics) const {
    std::vector<std::string> out;
    for (int n : nics) out.push_back(to_string(nic(n)));
    return join(out);
  }

  void ports() {
    std::vector<int> list = nameable(plan_.used_nics());
    if (list.empty()) {
      env_.notes.push_back("NCCL_IB_HCA, UCX_NET_DEVICES: no port with verbs to name");
      return;
    }
    const auto over = std::count_if(plan_.nics.begin(), plan_.nics.end(),
                                    [](const NicChoice& c) { return c.over_limit; });
    if (const size_t all = list.size() + static_cast<size_t>(over); all > nccl_max_hcas) {
      warn_of_many(all);
      list = cap(list);
    }
    add(env_.common, "NCCL_IB_HCA", "=" + names(list), o_.nics_from,
        "the node's usable ports, the same for all ranks");
    for (size_t i = 0; i < plan_.ranks.size(); ++i) {
      const RankPlan& r = plan_.ranks[i];
      if (const auto own = nameable(r.nics); !own.empty() && !r.spans)
        add(env_.ranks[i], "UCX_NET_DEVICES", names(own), o_.nics_from, "the rank's nearest ports");
    }
  }

  void warn_of_many(size_t count) {
    env_.warnings.push_back({"nic-many",
                             "NCCL takes " + std::to_string(nccl_max_hcas) + " ports: of " +
                                 std::to_string(count) + " usable ones the others are left out",
                             "name the ones for jobs: nic-include or nic-exclude in gpu-bind.conf, "
                             "or --gpu-bind-nic=list:NAMES",
                             false});
  }

  // As many as NCCL takes: those that ranks were given first, then in PCI order.
  std::vector<int> cap(const std::vector<int>& list) const {
    std::set<int> kept;
    for (const RankPlan& r : plan_.ranks)
      for (int n : nameable(r.nics))
        if (kept.size() < nccl_max_hcas) kept.insert(n);
    for (int n : list)
      if (kept.size() < nccl_max_hcas) kept.insert(n);
    return {kept.begin(), kept.end()};
  }

  void sockets() {
    const Route& route = o_.route;
    if (route.interface.empty()) {
      env_.notes.push_back("NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME: " +
                           (route.why.empty() ? "no node list" : route.why));
      return;
    }
    add(env_.common, "GLOO_SOCKET_IFNAME", route.interface, Source::topology, route.why);
    // Without verbs NCCL's own network is sockets, which it spreads over all cards.
    if (nameable(plan_.used_nics()).empty() && route.several_nics) {
      env_.notes.push_back("NCCL_SOCKET_IFNAME: sockets carry the data, over all network cards");
      return;
    }
    add(env_.common, "NCCL_SOCKET_IFNAME", "=" + route.interface, Source::topology, route.why);
  }

  void topology_file() {
    const std::string& file = o_.nccl_topology;
    if (file.empty()) return;
    const auto fits = check_nccl_topology(file, m_);
    if (fits) {
      add(env_.common, "NCCL_TOPO_FILE", file, Source::site, "the site's file is of this machine");
      return;
    }
    env_.notes.push_back("NCCL_TOPO_FILE: " + fits.error().what);
    env_.warnings.push_back({"topology-mismatch", fits.error().what + ": NCCL is not told of it",
                             "make the file anew on this node: gpu-bind show --format=nccl-xml",
                             false});
  }

  bool applies(const SiteVariable& v) const {
    if (v.kind.empty()) return true;
    const auto used = plan_.used_nics();
    return std::any_of(used.begin(), used.end(), [&](int n) { return v.kind == kind_of(nic(n)); });
  }

  void site() {
    std::map<std::string, const SiteVariable*> chosen;
    for (const SiteVariable& v : o_.variables) {
      if (!applies(v)) continue;
      const SiteVariable*& slot = chosen[v.name];
      if (!slot || (slot->kind.empty() && !v.kind.empty())) slot = &v;
    }
    for (const auto& [name, v] : chosen) {
      if (by_option(name)) {
        env_.notes.push_back("the site's " + name + ": --gpu-bind-nic was given");
        continue;
      }
      drop(env_.common, name);
      for (auto& rank : env_.ranks) drop(rank, name);
      add(env_.common, name, v->value, Source::site,
          v->kind.empty() ? "the site's" : "the site's for " + v->kind);
    }
  }

  // A user who chose ports, or none, does not get the site's instead.
  bool by_option(const std::string& name) const {
    return o_.nics_from == Source::option && (name == "NCCL_IB_HCA" || name == "UCX_NET_DEVICES");
  }
  static void drop(std::vector<Variable>& from, const std::string& name) {
    std::erase_if(from, [&](const Variable& v) { return v.name == name; });
  }

  const Machine& m_;
  const Plan& plan_;
  const EnvOptions& o_;
  Environment env_;
};

}  // namespace

const char* name_of(Source source) {
  switch (source) {
    case Source::topology:
      return "topology";
    case Source::site:
      return "site";
    case Source::option:
      return "option";
  }
  return "";
}

const char* kind_of(const Nic& nic) {
  if (nic.vendor == pci_amazon) return "efa";
  switch (nic.link_layer) {
    case LinkLayer::infiniband:
      return "infiniband";
    case LinkLayer::ethernet:
      return nic.verbs ? "roce" : "ethernet";
    case LinkLayer::omni_path:
      return "omni-path";
    case LinkLayer::slingshot:
      return "slingshot";
    case LinkLayer::unknown:
      return "";
  }
  return "";
}

Environment environment(const Machine& machine, const Plan& plan, const EnvOptions& options) {
  return Builder(machine, plan, options).run();
}

}  // namespace trainlaunch
