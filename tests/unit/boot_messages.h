// Worlds, messages and secrets for the tests of lib/boot.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "boot/auth.h"
#include "boot/bootstrap.h"
#include "boot/message.h"

namespace trainlaunch {

inline World world_of(int size, int per_node, int rank = 0) {
  std::vector<std::string> hosts;
  for (int r = 0; r < size; ++r) hosts.push_back("n" + std::to_string(r / per_node + 1));
  return arrange(static_cast<uint32_t>(rank), hosts).value();
}

inline Message make(Message::Kind kind, uint64_t id, std::string name,
                    std::vector<std::string> values = {}, int64_t number = -1) {
  Message m;
  m.kind = kind;
  m.id = id;
  m.number = number;
  m.name = std::move(name);
  m.values = std::move(values);
  return m;
}

inline Secret secret_of(uint8_t byte) {
  Secret s;
  s.fill(byte);
  return s;
}

}  // namespace trainlaunch
