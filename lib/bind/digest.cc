#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "bind/parts.h"

namespace trainlaunch {
namespace {

std::string hex(uint64_t n) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(n));
  return digits;
}

uint64_t hash(const std::string& text) { return XXH3_64bits(text.data(), text.size()); }

std::string everything(const Machine& m, const Plan& plan) {
  std::string text;
  for (const RankPlan& r : plan.ranks) {
    for (int g : r.gpus) text += to_string(m.gpus[static_cast<size_t>(g)]) + ' ';
    for (int n : r.nics) text += to_string(m.nics[static_cast<size_t>(n)]) + ' ';
    text += r.keep_cpus ? "-" : to_list(r.cpus);
    text += ' ' + std::to_string(r.mem.value_or(-1)) + '\n';
  }
  for (int n : plan.used_nics()) text += to_string(m.nics[static_cast<size_t>(n)]) + ' ';
  return text + std::to_string(static_cast<int>(plan.mem)) + '\n' + to_list(plan.gpu_order);
}

}  // namespace

std::string rails_of(const Plan& plan) {
  const std::vector<int> used = plan.used_nics();
  std::string out;
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    std::vector<int> rails;
    for (int n : plan.ranks[i].nics)
      rails.push_back(static_cast<int>(std::find(used.begin(), used.end(), n) - used.begin()));
    std::sort(rails.begin(), rails.end());
    out += (i == 0 ? "rank " : "; rank ") + std::to_string(i) + ": " +
           (rails.empty() ? "no rail" : "rail " + to_list(rails));
  }
  return out;
}

std::string ports_of(const Machine& m, const Plan& plan) {
  std::map<std::string, int> kinds;
  for (int n : plan.used_nics()) {
    const Nic& nic = m.nics[static_cast<size_t>(n)];
    std::string kind = name_of(nic.link_layer);
    if (nic.rate_gbps > 0) kind += ' ' + gbps(nic.rate_gbps);
    ++kinds[kind];
  }
  if (kinds.empty()) return "none";
  std::string out;
  for (const auto& [kind, n] : kinds)
    out += (out.empty() ? "" : ", ") + std::to_string(n) + " x " + kind;
  return out;
}

std::string digest(const Machine& m, const Plan& plan) {
  const std::string whole = everything(m, plan);
  const XXH128_hash_t h = XXH3_128bits(whole.data(), whole.size());
  return hex(h.high64) + hex(h.low64) + hex(hash(rails_of(plan))) + hex(hash(ports_of(m, plan)));
}

}  // namespace trainlaunch
