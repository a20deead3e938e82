// Sockets between the workers of one node, made by their supervisors before they start: AF_UNIX,
// SOCK_SEQPACKET, one for each pair, over which descriptors of shared memory are passed.
//
// Every supervisor listens on an abstract name of 128 random bits and tells it, with a nonce, over
// the control channel. The higher local rank connects and shows the listener's nonce; the listener
// answers with the other's. Equal host names alone prove nothing: containers on different machines
// may share one, and abstract names end at a network namespace.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "base/time.h"

namespace trainlaunch {

class LocalListener {
 public:
  static Result<LocalListener> open();

  // What the other ranks of the node must know.
  struct Card {
    std::string name, nonce;
  };
  const Card& card() const { return card_; }

  // `cards` of the node's ranks, by local rank. Returns a socket for each, none for the own rank.
  Result<std::vector<Fd>> connect(const std::vector<Card>& cards, int local_rank,
                                  Deadline deadline);

 private:
  Fd socket_;
  Card card_;
};

}  // namespace trainlaunch
