#include "report_parts.h"

#include <cmath>

namespace trainlaunch {

std::string plain(std::string_view words) {
  std::string out;
  for (const char c : words) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80)
      out += '?';
    else if (byte >= 0x20 && byte != 0x7f)
      out += c;
  }
  return out;
}

std::string source_of(const Variable& v) { return name_of(v.source) + (": " + v.why); }

std::string pci_name(const Machine& m, const Gpu& g) { return m.made_up_ids ? "" : to_string(g); }
std::string pci_name(const Machine& m, const Nic& n) {
  return m.made_up_ids ? "" : to_string(n.pci);
}

std::string gpu_names(const Machine& m, const std::vector<int>& gpus) {
  std::string out;
  for (int g : gpus) {
    const Gpu& gpu = m.gpus[static_cast<size_t>(g)];
    out += (out.empty() ? "GPU " : ", GPU ") + std::to_string(gpu.index);
    if (!m.made_up_ids) out += ' ' + to_string(gpu);
  }
  return out;
}

std::string nic_names(const Machine& m, const std::vector<int>& nics) {
  std::string out;
  for (int n : nics) out += (out.empty() ? "" : ",") + to_string(m.nics[static_cast<size_t>(n)]);
  return out;
}

std::string rate_name(const Nic& nic) {
  return nic.rate_gbps > 0 ? std::to_string(std::lround(nic.rate_gbps)) + " Gb/s" : "";
}

std::string machine_counts(const Machine& m) {
  const auto count = [](size_t n, const char* what) {
    return std::to_string(n) + ' ' + what + (n == 1 ? "" : "s");
  };
  return count(m.cpus.count(), "CPU") + ", " + count(m.cores.size(), "core") + ", " +
         count(m.numa.size(), "memory node") + ", " + count(m.gpus.size(), "GPU") + ", " +
         count(m.nics.size(), "port");
}

}  // namespace trainlaunch
