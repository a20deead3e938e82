#include "boot/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>

#include "boot/message.h"

namespace trainlaunch {
namespace {

constexpr std::string_view magic{"tl-ctl/1", 8};
constexpr char role_supervisor = 1;
constexpr size_t nonce_bytes = 32;

std::string mac(const Secret& key, std::initializer_list<std::string_view> parts) {
  std::string text;
  for (std::string_view p : parts) text.append(p);
  std::string out(mac_bytes, '\0');
  unsigned size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(),
       reinterpret_cast<unsigned char*>(out.data()), &size);
  return out;
}

bool same(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Secret key_of(const Secret& secret, std::string_view label, std::string_view hello,
              std::string_view nonce) {
  const std::string bytes = mac(secret, {label, hello, nonce});
  Secret key;
  std::copy(bytes.begin(), bytes.end(), key.begin());
  return key;
}

Keys derive(const Secret& secret, std::string_view hello, std::string_view nonce) {
  return {key_of(secret, "key to hub", hello, nonce), key_of(secret, "key to rank", hello, nonce)};
}

std::string counted(uint64_t counter) {
  std::string out;
  put_u64(out, counter);
  return out;
}

}  // namespace

Result<std::string> random_bytes(size_t n) {
  std::string out(n, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(out.data()), static_cast<int>(n)) != 1)
    return fail("the system gives no random numbers");
  return out;
}

Result<Secret> make_secret() {
  auto bytes = random_bytes(sizeof(Secret));
  if (!bytes) return forward(bytes);
  Secret s;
  std::copy(bytes->begin(), bytes->end(), s.begin());
  return s;
}

std::string Seal::next(std::string_view frame) { return mac(key_, {counted(counter_++), frame}); }

bool Seal::check(std::string_view frame, std::string_view given) {
  return same(mac(key_, {counted(counter_++), frame}), given);
}

namespace handshake {

Result<Rank> Rank::begin(const Secret& secret, Identity who) {
  auto nonce = random_bytes(nonce_bytes);
  if (!nonce) return forward(nonce);
  Rank r;
  r.secret_ = secret;
  r.hello_ = magic;
  r.hello_.push_back(role_supervisor);
  put_u32(r.hello_, who.rank);
  put_u32(r.hello_, who.generation);
  r.hello_ += *nonce;
  return r;
}

Result<std::string> Rank::answer(std::string_view challenge) {
  if (challenge.size() != challenge_bytes) return fail("control channel: a malformed challenge");
  const std::string_view nonce = challenge.substr(0, nonce_bytes);
  if (!same(mac(secret_, {"hub", hello_, nonce}), challenge.substr(nonce_bytes)))
    return fail("control channel: who answered does not know this job step's secret");
  keys_ = derive(secret_, hello_, nonce);
  return mac(secret_, {"rank", hello_, nonce});
}

Result<Hub> Hub::begin(const Secret& secret, std::string_view hello) {
  if (hello.size() != hello_bytes || hello.substr(0, magic.size()) != magic ||
      hello[magic.size()] != role_supervisor)
    return fail("control channel: a stranger's greeting");
  auto nonce = random_bytes(nonce_bytes);
  if (!nonce) return forward(nonce);
  Hub h;
  h.claim_ = {get_u32(hello.substr(9)), get_u32(hello.substr(13))};
  h.challenge_ = *nonce + mac(secret, {"hub", hello, *nonce});
  h.proof_ = mac(secret, {"rank", hello, *nonce});
  h.keys_ = derive(secret, hello, *nonce);
  return h;
}

Status Hub::accept(std::string_view proof) const {
  if (!same(proof_, proof)) return fail("control channel: a wrong proof");
  return {};
}

}  // namespace handshake
}  // namespace trainlaunch
