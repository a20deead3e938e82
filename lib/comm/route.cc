#include "comm/route.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "base/file.h"

namespace trainlaunch {

namespace {

socklen_t length_of(int family) {
  return family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

std::string numeric(const sockaddr* a) {
  std::array<char, NI_MAXHOST> text{};
  if (getnameinfo(a, length_of(a->sa_family), text.data(), text.size(), nullptr, 0,
                  NI_NUMERICHOST) != 0)
    return "";
  return text.data();
}

// The address that packets to `ip` would leave from; nothing is sent. Empty without a route.
std::string source_for(const std::string& ip) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(ip.c_str(), "9", &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> hold(found, freeaddrinfo);
  const Fd fd(socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0) return "";
  sockaddr_storage local{};
  socklen_t size = sizeof(local);
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &size) != 0) return "";
  return numeric(reinterpret_cast<sockaddr*>(&local));
}

}  // namespace

Result<std::string> choose_address(const std::string& wanted, const std::vector<LocalAddress>& own,
                                   const std::vector<std::string>& peer) {
  const auto is_own = [&](const std::string& ip) {
    return std::any_of(own.begin(), own.end(), [&](const LocalAddress& a) { return a.ip == ip; });
  };
  if (!wanted.empty()) {
    std::string have;
    for (const LocalAddress& a : own) {
      if (a.interface == wanted) return a.ip;
      if (have.find(a.interface) == std::string::npos) have += " " + a.interface;
    }
    return fail("interface " + wanted + " has no address here; there are:" + have);
  }
  bool same = true;
  for (const std::string& ip : peer) {
    // An address that both have (loopback, a container bridge) leads nowhere.
    if (is_own(ip)) continue;
    same = false;
    if (const std::string source = source_for(ip); is_own(source)) return source;
  }
  if (same && is_own("127.0.0.1")) return std::string("127.0.0.1");  // one network stack
  return fail("no interface leads to another node; name one (GLOO_SOCKET_IFNAME)");
}

}  // namespace trainlaunch
