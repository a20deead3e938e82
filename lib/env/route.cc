#include "env/route.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>

#include "env/hosts.h"

namespace trainlaunch {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// The local address that the kernel would use towards `peer`; false when there is no route.
bool source_address(const addrinfo& peer, sockaddr_storage& source) {
  const int fd = socket(peer.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  socklen_t size = sizeof source;
  // Connecting a datagram socket sends nothing; it only looks up the route.
  const bool ok = connect(fd, peer.ai_addr, peer.ai_addrlen) == 0 &&
                  getsockname(fd, reinterpret_cast<sockaddr*>(&source), &size) == 0;
  close(fd);
  return ok;
}

bool same_address(const sockaddr* a, const sockaddr* b) {
  if (!a || !b || a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  if (a->sa_family == AF_INET6)
    return std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                       &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, 16) == 0;
  return false;
}

bool is_loopback(const sockaddr* a) {
  if (a->sa_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr);
}

// The interface that has the address; empty when none has. Loopback only if no other has it: hosts
// that announce a routable address of their own keep it there (NVIDIA/nccl issue 1053).
std::string interface_with(const sockaddr* address) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  std::string name, loopback;
  for (const ifaddrs* i = list; i; i = i->ifa_next)
    if (same_address(i->ifa_addr, address))
      (i->ifa_flags & IFF_LOOPBACK ? loopback : name) = i->ifa_name;
  freeifaddrs(list);
  if (name.empty()) name = loopback;
  // "eth0:1" labels a further address of eth0.
  return name.substr(0, name.find(':'));
}

// Runs in the child: one line for the parent, "interface" or empty.
std::string look_up(const std::string& peer) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* raw = nullptr;
  if (getaddrinfo(peer.c_str(), "9", &hints, &raw) != 0) return "";
  const Addresses addresses(raw, freeaddrinfo);
  for (const addrinfo* a = raw; a; a = a->ai_next) {
    sockaddr_storage source{};
    if (!source_address(*a, source)) continue;
    const auto* address = reinterpret_cast<const sockaddr*>(&source);
    // A peer that resolves to this host's own loopback says nothing about the network.
    if (is_loopback(address)) continue;
    if (std::string name = interface_with(address); !name.empty()) return name;
  }
  return "";
}

// look_up with a deadline.
std::string look_up_in_child(const std::string& peer, Deadline deadline) {
  int pipe_fd[2];
  if (pipe2(pipe_fd, O_CLOEXEC) != 0) return "";
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const std::string name = look_up(peer);
    const ssize_t written = write(pipe_fd[1], name.data(), name.size());
    _exit(written == static_cast<ssize_t>(name.size()) ? 0 : 1);
  }
  close(pipe_fd[1]);
  char answer[IF_NAMESIZE] = "";
  ssize_t got = 0;
  if (child > 0) {
    pollfd wait{pipe_fd[0], POLLIN, 0};
    if (poll(&wait, 1, deadline.poll_ms()) == 1) got = read(pipe_fd[0], answer, sizeof answer);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  close(pipe_fd[0]);
  return got > 0 ? std::string(answer, static_cast<size_t>(got)) : "";
}

// Real cards that are up and have an address.
size_t cards_with_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return 0;
  std::set<std::string> cards;
  for (const ifaddrs* i = list; i; i = i->ifa_next) {
    if (!i->ifa_addr || !(i->ifa_flags & IFF_RUNNING)) continue;
    if (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6) continue;
    const std::string device = std::string("/sys/class/net/") + i->ifa_name + "/device";
    if (access(device.c_str(), F_OK) == 0) cards.insert(i->ifa_name);
  }
  freeifaddrs(list);
  return cards.size();
}

}  // namespace

Route route_to_peer(std::string_view list, const std::string& self, Deadline deadline) {
  Route route;
  const auto hosts = expand_hosts(list, 2);
  if (!hosts) {
    route.why = hosts.error().what;
    return route;
  }
  const auto peer =
      std::find_if(hosts->begin(), hosts->end(), [&](const std::string& h) { return h != self; });
  if (peer == hosts->end()) {
    route.why = "the job has one node";
    return route;
  }
  route.interface = look_up_in_child(*peer, deadline);
  if (route.interface.empty()) {
    route.why = "no address or route to " + *peer + " was found in time";
    return route;
  }
  route.why = "leads to " + *peer;
  route.several_nics = cards_with_addresses() > 1;
  return route;
}

}  // namespace trainlaunch
