// A supervisor's connection to the hub. It never blocks, except in join() and call(), so that one
// thread can watch it, the worker and signals together.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "boot/auth.h"
#include "boot/conn.h"
#include "boot/hub.h"
#include "boot/message.h"

namespace trainlaunch {

class Link {
 public:
  struct Place {
    std::vector<std::string> addresses;
    int port = 0;
  };

  struct Options {
    Secret secret{};
    Identity who;
    int size = 1;  // of the world: bounds the answer to a gather
    Pace pace;
  };

  // Tries the addresses in turn until one answers and knows the secret.
  static Result<Link> join(const Place& hub, const Options& options, Deadline deadline);
  // Over a socket that is connected already. The other side has until `challenged` to show that it
  // knows the secret too.
  static Result<Link> join(Fd socket, const Options& options, Deadline challenged,
                           Deadline deadline);

  int fd() const { return conn_.fd(); }
  short events() const { return conn_.events(); }
  const std::string& hub_address() const { return hub_address_; }  // the one that answered

  void send(const Message& m) { conn_.send(m); }
  // Reads, writes and gives signs of life; to be called when poll(2) says so, and every second.
  // An error: the hub is lost; next() still has what it said before.
  Status pump();
  std::optional<Message> next();

  // Asks and waits for the answer; other messages are kept for next().
  Result<std::vector<std::string>> call(Message m, Deadline deadline);

  // What the next sign of life says of the worker.
  void set_progress(int64_t step, std::string phase);

 private:
  Link(Conn conn, const Options& options);

  Conn conn_;
  Pace pace_;
  uint32_t generation_;
  std::string hub_address_;
  std::deque<Message> arrived_;
  Message sign_;
  Clock::time_point heard_, pinged_, pumped_;
  uint64_t last_id_ = 0;
};

}  // namespace trainlaunch
