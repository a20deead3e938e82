// What supervisors say to the hub, the hub to supervisors, and a supervisor to its worker: one
// shape for all, so that a supervisor forwards without looking inside.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace trainlaunch {

struct Message {
  // The comment gives the fields in use; `id` is chosen by the asker and comes back in the answer.
  enum class Kind : uint8_t {
    put = 1,  // id, name: key, values[0]
    get,      // id, name: key, number: milliseconds to wait, negative: for ever
    gather,   // id, name, values[0], number: as in get
    reply,    // id, values
    error,    // id, name: what
    ping,     // name: phase, number: step, of a rank's worker; from the hub, neither
    failed,   // name: what happened to this rank's worker, number: the exit code it asks for;
              // from a worker to its supervisor: name: why it is about to exit
    left,     // number: exit code; this rank's worker and all its children are gone
    failure,  // from the hub to all: name: what happened first, number: exit code
    finish,   // from the hub to all when every rank has left; number: the common exit code
    welcome,  // supervisor to worker, first of all: values[0]: World and sockets, as JSON
    progress  // worker to supervisor: name: phase, number: step
  };

  Kind kind = Kind::ping;
  uint32_t generation = 0;
  uint64_t id = 0;
  int64_t number = 0;
  std::string name;
  std::vector<std::string> values;

  static constexpr size_t max_name = 256;
};

// Little-endian: kind u8, generation u32, id u64, number i64, name, count u32, values; a string is
// its length u32 and its bytes. decode() takes exactly one message and trusts no length.
std::string encode(const Message& m);
Result<Message> decode(std::string_view body);

// Fixed-width little-endian numbers, here and in the handshake.
void put_u32(std::string& out, uint32_t x);
void put_u64(std::string& out, uint64_t x);
uint32_t get_u32(std::string_view bytes);
uint64_t get_u64(std::string_view bytes);

// The longest body of a message that holds `count` values of the largest size.
size_t max_body(size_t count);

}  // namespace trainlaunch
