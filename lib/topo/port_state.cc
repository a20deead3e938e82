#include "topo/port_state.h"

#include <charconv>
#include <fstream>

namespace trainlaunch {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

}  // namespace

double parse_rate(std::string_view text) {
  double gbps = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), gbps);
  if (error != std::errc() || gbps < 0 || gbps > 1e6) return 0;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return text.starts_with(" Gb/sec") ? gbps : 0;
}

LinkLayer parse_link_layer(std::string_view text) {
  if (text == "InfiniBand") return LinkLayer::infiniband;
  if (text == "Ethernet") return LinkLayer::ethernet;
  return LinkLayer::unknown;
}

void read_port_state(Nic& nic) {
  if (nic.link_layer == LinkLayer::slingshot) {
    const std::string net = "/sys/class/net/" + nic.name;
    const std::string state = first_line(net + "/operstate");
    if (!state.empty()) nic.active = state == "up";
    double mbps = 0;
    const std::string speed = first_line(net + "/speed");
    std::from_chars(speed.data(), speed.data() + speed.size(), mbps);
    if (mbps > 0) nic.rate_gbps = mbps / 1000;
    return;
  }
  const std::string port =
      "/sys/class/infiniband/" + nic.name + "/ports/" + std::to_string(nic.port);
  const std::string state = first_line(port + "/state");  // "4: ACTIVE"
  if (!state.empty()) nic.active = state.starts_with("4:");
  if (const double rate = parse_rate(first_line(port + "/rate")); rate > 0) nic.rate_gbps = rate;
  // Omni-Path says "InfiniBand" here too.
  if (nic.link_layer == LinkLayer::omni_path) return;
  if (const LinkLayer layer = parse_link_layer(first_line(port + "/link_layer"));
      layer != LinkLayer::unknown)
    nic.link_layer = layer;
}

}  // namespace trainlaunch
