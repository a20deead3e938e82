// TCP: this machine's addresses, free ports, and connections with deadlines.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "base/time.h"

namespace trainlaunch {

struct LocalAddress {
  std::string interface, ip;  // numeric
  bool loopback = false;
};
// Of the interfaces that are up, IPv4 first; none that are local to their link only.
std::vector<LocalAddress> own_addresses();

struct Listener {
  Fd socket;
  int port = 0;
};
// On 127.0.0.1, or on every address of both families.
Result<Listener> listen_on_free_port(bool loopback);

// A port that was free a moment ago.
Result<int> free_port();

Result<Fd> connect_to(const std::string& address, int port, Deadline deadline);

// Small messages at once; unacknowledged data for so long means that the peer is gone.
void set_stream_options(int socket, Seconds silence);

}  // namespace trainlaunch
