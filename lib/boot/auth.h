// Who may speak on the control channel, and that nobody else does.
//
// Both ends hold the job step's secret. The handshake has three parts of fixed size, so nothing a
// stranger sends is ever measured or stored:
//
//   rank -> hub   hello      magic, role, rank, generation, nonce
//   hub  -> rank  challenge  nonce, HMAC(secret, "hub"  | hello | nonce of the hub)
//   rank -> hub   proof      HMAC(secret, "rank" | hello | nonce of the hub)
//
// From then on each direction has a key of its own, HMAC(secret, label | hello | nonce of the hub),
// and every frame carries HMAC(key, counter | frame) with a counter that is not sent: a frame that
// was altered, repeated, dropped, reordered or reflected does not verify. HMAC is HMAC-SHA256
// (RFC 2104); comparisons take the same time whatever differs. Frames are not encrypted.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace trainlaunch {

inline constexpr size_t mac_bytes = 32;
using Secret = std::array<uint8_t, 32>;

// Fresh from the system's random number generator.
Result<Secret> make_secret();
Result<std::string> random_bytes(size_t n);

struct Identity {
  uint32_t rank = 0;
  uint32_t generation = 0;
};

// One direction of an authenticated connection: the MAC of the frames, in order.
class Seal {
 public:
  explicit Seal(const Secret& key) : key_(key) {}
  std::string next(std::string_view frame);                  // for sending
  bool check(std::string_view frame, std::string_view mac);  // for receiving

 private:
  Secret key_;
  uint64_t counter_ = 0;
};

struct Keys {
  Secret to_hub{};
  Secret to_rank{};
};

namespace handshake {

inline constexpr size_t hello_bytes = 8 + 1 + 4 + 4 + 32;
inline constexpr size_t challenge_bytes = 32 + mac_bytes;
inline constexpr size_t proof_bytes = mac_bytes;

// The rank's side.
class Rank {
 public:
  static Result<Rank> begin(const Secret& secret, Identity who);
  const std::string& hello() const { return hello_; }
  // The proof to send, once the hub has shown that it knows the secret.
  Result<std::string> answer(std::string_view challenge);
  const Keys& keys() const { return keys_; }

 private:
  Secret secret_{};
  std::string hello_;
  Keys keys_;
};

// The hub's side. The identity is a claim until accept() returns.
class Hub {
 public:
  static Result<Hub> begin(const Secret& secret, std::string_view hello);
  Identity claim() const { return claim_; }
  const std::string& challenge() const { return challenge_; }
  Status accept(std::string_view proof) const;
  const Keys& keys() const { return keys_; }

 private:
  std::string proof_;
  std::string challenge_;
  Identity claim_;
  Keys keys_;
};

}  // namespace handshake
}  // namespace trainlaunch
