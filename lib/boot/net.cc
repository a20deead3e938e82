#include "boot/net.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>

namespace trainlaunch {
namespace {

std::string numeric(const sockaddr* a) {
  char text[INET6_ADDRSTRLEN] = "";
  const void* bytes = &reinterpret_cast<const sockaddr_in*>(a)->sin_addr;
  if (a->sa_family == AF_INET6) bytes = &reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr;
  inet_ntop(a->sa_family, bytes, text, sizeof text);
  return text;
}

bool link_local(const sockaddr* a) {
  if (a->sa_family == AF_INET6)
    return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr);
  const uint32_t four = ntohl(reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr);
  return four >> 16 == 0xA9FE;  // 169.254/16
}

Result<Listener> listen_at(const sockaddr* address, socklen_t length) {
  Listener l;
  l.socket = Fd(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!l.socket) return fail_errno("socket");
  if (address->sa_family == AF_INET6) {
    const int off = 0;
    setsockopt(l.socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (::bind(l.socket.get(), address, length) < 0) return fail_errno("bind");
  if (::listen(l.socket.get(), SOMAXCONN) < 0) return fail_errno("listen");
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (::getsockname(l.socket.get(), reinterpret_cast<sockaddr*>(&bound), &size) < 0)
    return fail_errno("getsockname");
  l.port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  return l;
}

}  // namespace

std::vector<LocalAddress> own_addresses() {
  std::vector<LocalAddress> four, six;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const ifaddrs* i = list; i; i = i->ifa_next) {
    if (!i->ifa_addr || !(i->ifa_flags & IFF_UP)) continue;
    const auto family = i->ifa_addr->sa_family;
    if ((family != AF_INET && family != AF_INET6) || link_local(i->ifa_addr)) continue;
    (family == AF_INET ? four : six)
        .push_back({i->ifa_name, numeric(i->ifa_addr), (i->ifa_flags & IFF_LOOPBACK) != 0});
  }
  four.insert(four.end(), six.begin(), six.end());
  return four;
}

Result<Listener> listen_on_free_port(bool loopback) {
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
  if (!loopback) {
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_addr = in6addr_any;
    if (auto both = listen_at(reinterpret_cast<sockaddr*>(&six), sizeof six)) return both;
  }
  return listen_at(reinterpret_cast<sockaddr*>(&four), sizeof four);
}

Result<int> free_port() {
  auto l = listen_on_free_port(false);
  if (!l) return forward(l);
  return l->port;
}

Result<Fd> connect_to(const std::string& address, int port, Deadline deadline) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  if (getaddrinfo(address.c_str(), service.c_str(), &hints, &found) != 0)
    return fail(address + " is no address");
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);

  Fd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return fail_errno("socket");
  const std::string where = address + " port " + service;
  if (::connect(fd.get(), found->ai_addr, found->ai_addrlen) < 0) {
    if (errno != EINPROGRESS) return fail_errno(where);
    pollfd p{fd.get(), POLLOUT, 0};
    int n;
    do n = ::poll(&p, 1, deadline.poll_ms());
    while (n < 0 && errno == EINTR && !deadline.over());
    if (n <= 0) return fail(where + ": no answer");
    socklen_t size = sizeof errno;
    int error = 0;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error) {
      errno = error;
      return fail_errno(where);
    }
  }
  return fd;
}

void set_stream_options(int socket, Seconds silence) {
  const int on = 1;
  const unsigned ms = static_cast<unsigned>(silence.count() * 1000);
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

}  // namespace trainlaunch
