#include "boot/local_sockets.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "boot/auth.h"
#include "boot/message.h"

namespace trainlaunch {
namespace {

constexpr size_t nonce_bytes = 16;

struct Address {
  sockaddr_un un{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&un); }
};

Result<Address> abstract(const std::string& name) {
  Address a;
  if (name.empty() || name.size() + 1 > sizeof a.un.sun_path)
    return fail("local sockets: a name of the wrong size");
  a.un.sun_family = AF_UNIX;
  std::memcpy(a.un.sun_path + 1, name.data(), name.size());
  a.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return a;
}

bool same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

bool readable(int fd, Deadline deadline) {
  for (;;) {
    pollfd p{fd, POLLIN, 0};
    const int n = ::poll(&p, 1, deadline.poll_ms());
    if (n >= 0 || errno != EINTR) return n > 0;
  }
}

// One packet of exactly n bytes, or nothing.
std::string packet(int fd, size_t n, Deadline deadline) {
  std::string bytes(n + 1, '\0');
  if (!readable(fd, deadline)) return "";
  const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), 0);
  if (got != static_cast<ssize_t>(n)) return "";
  bytes.resize(n);
  return bytes;
}

Status put_packet(int fd, const std::string& bytes) {
  if (::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size()))
    return fail_errno("local sockets: send");
  return {};
}

Result<Fd> seqpacket() {
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) return fail_errno("local sockets: socket");
  return fd;
}

}  // namespace

Result<LocalListener> LocalListener::open() {
  auto name = random_bytes(nonce_bytes);
  auto nonce = random_bytes(nonce_bytes);
  auto socket = seqpacket();
  if (!name) return forward(name);
  if (!nonce) return forward(nonce);
  if (!socket) return forward(socket);
  LocalListener l;
  l.card_ = {"train-launch/" + *name, *nonce};
  auto address = abstract(l.card_.name);
  if (!address) return forward(address);
  if (::bind(socket->get(), address->get(), address->length) < 0)
    return fail_errno("local sockets: bind");
  if (::listen(socket->get(), SOMAXCONN) < 0) return fail_errno("local sockets: listen");
  l.socket_ = std::move(*socket);
  return l;
}

Result<std::vector<Fd>> LocalListener::connect(const std::vector<Card>& cards, int local_rank,
                                               Deadline deadline) {
  const int size = static_cast<int>(cards.size());
  std::vector<Fd> sockets(cards.size());

  // Greet every lower rank; its answer is read last, when nobody can be waiting for this one.
  for (int lower = 0; lower < local_rank; ++lower) {
    auto socket = seqpacket();
    if (!socket) return forward(socket);
    auto address = abstract(cards[lower].name);
    if (!address) return forward(address);
    if (::connect(socket->get(), address->get(), address->length) < 0)
      return fail_errno("local sockets: connect");
    std::string hello = cards[lower].nonce;
    put_u32(hello, static_cast<uint32_t>(local_rank));
    if (Status s = put_packet(socket->get(), hello); !s) return forward(s);
    sockets[lower] = std::move(*socket);
  }

  for (int missing = size - 1 - local_rank; missing > 0;) {
    if (!readable(socket_.get(), deadline)) return fail("local sockets: a rank did not connect");
    Fd fd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd || !same_user(fd.get())) continue;
    const std::string hello = packet(fd.get(), nonce_bytes + 4, deadline);
    if (hello.empty() || hello.substr(0, nonce_bytes) != card_.nonce) continue;
    const uint32_t rank = get_u32(std::string_view(hello).substr(nonce_bytes));
    if (rank <= static_cast<uint32_t>(local_rank) || rank >= cards.size() || sockets[rank])
      continue;
    if (Status s = put_packet(fd.get(), cards[rank].nonce); !s) return forward(s);
    sockets[rank] = std::move(fd);
    --missing;
  }

  for (int lower = 0; lower < local_rank; ++lower)
    if (packet(sockets[lower].get(), nonce_bytes, deadline) != card_.nonce)
      return fail("local sockets: a rank answered with the wrong nonce");
  return sockets;
}

}  // namespace trainlaunch
