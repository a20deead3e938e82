#include "env/env.h"

#include <algorithm>

namespace trainlaunch {
namespace {

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
    return std::move(env_);
  }

 private:
  void add(std::vector<Variable>& to, const char* name, std::string value, std::string why) const {
    to.push_back({name, std::move(value), o_.mode == EnvMode::set, std::move(why)});
  }

  // The GPU's name in Slurm's words.
  std::string word(int gpu) const {
    const auto at = std::find(plan_.gpus.begin(), plan_.gpus.end(), gpu) - plan_.gpus.begin();
    return o_.devices.empty() ? std::to_string(gpu) : o_.devices[static_cast<size_t>(at)];
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
        env_.notes.push_back("devices: ZE_AFFINITY_MASK cannot order GPUs: left alone");
        return;
      }
      name = "ZE_AFFINITY_MASK";
    }
    // Slurm sets these in every task, so keeping what is there would change nothing.
    const auto give = [&](std::vector<Variable>& to, const std::vector<int>& gpus,
                          const char* why) {
      const auto list = words(gpus);
      to.push_back({name, join(list), true, why});
      if (vendor == Vendor::nvidia && std::all_of(list.begin(), list.end(), is_number))
        to.push_back({"CUDA_DEVICE_ORDER", "PCI_BUS_ID", true, "the numbers count in PCI order"});
    };
    if (ordered) {
      give(env_.common, plan_.gpu_order, "all GPUs of the step, each rank's own at LOCAL_RANK");
      return;
    }
    for (size_t i = 0; i < plan_.ranks.size(); ++i)
      give(env_.ranks[i], plan_.ranks[i].gpus, "the rank's own GPUs");
  }

  void ports() {
    std::vector<std::string> list;
    for (int n : plan_.used_nics()) {
      const Nic& nic = m_.nics[static_cast<size_t>(n)];
      if (nic.verbs) list.push_back(to_string(nic));
    }
    if (list.empty()) {
      env_.notes.push_back("NCCL_IB_HCA, UCX_NET_DEVICES: no port with verbs to name");
      return;
    }
    add(env_.common, "NCCL_IB_HCA", "=" + join(list),
        "the node's usable ports, the same for all ranks");
    for (size_t i = 0; i < plan_.ranks.size(); ++i) {
      const RankPlan& r = plan_.ranks[i];
      std::vector<std::string> own;
      for (int n : r.nics)
        if (const Nic& nic = m_.nics[static_cast<size_t>(n)]; nic.verbs)
          own.push_back(to_string(nic));
      if (!own.empty() && !r.spans)
        add(env_.ranks[i], "UCX_NET_DEVICES", join(own), "the rank's nearest ports");
    }
  }

  void sockets() {
    const Route& route = o_.route;
    if (route.interface.empty()) {
      env_.notes.push_back("NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME: " +
                           (route.why.empty() ? "no node list" : route.why));
      return;
    }
    add(env_.common, "GLOO_SOCKET_IFNAME", route.interface, route.why);
    const auto used = plan_.used_nics();
    if (used.empty() && route.several_nics) {
      env_.notes.push_back("NCCL_SOCKET_IFNAME: sockets carry the data, over all network cards");
      return;
    }
    add(env_.common, "NCCL_SOCKET_IFNAME", "=" + route.interface, route.why);
  }

  const Machine& m_;
  const Plan& plan_;
  const EnvOptions& o_;
  Environment env_;
};

}  // namespace

Environment environment(const Machine& machine, const Plan& plan, const EnvOptions& options) {
  return Builder(machine, plan, options).run();
}

}  // namespace trainlaunch
