#include <algorithm>
#include <bit>

#include "data/data.h"

namespace trainlaunch {

namespace {

// A permutation of [0, 4^half_bits): a balanced Feistel network with Philox as its round function.
// Luby & Rackoff ("How to construct pseudorandom permutations", 1988) need four rounds; six leave
// room for the small domains that are common here.
uint64_t feistel(uint64_t key, uint64_t x, int half_bits) {
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t left = x >> half_bits, right = x & mask;
  for (uint32_t round = 0; round < 6; ++round) {
    const uint64_t mixed = philox(key, RandomStream::order, right, round)[0] & mask;
    const uint64_t next = left ^ mixed;
    left = right;
    right = next;
  }
  return left << half_bits | right;
}

}  // namespace

uint64_t order(uint64_t seed, uint64_t g, uint64_t n) {
  const uint64_t epoch = g / n;
  const Philox k = philox(seed, RandomStream::order, epoch, ~0u);
  const uint64_t key = uint64_t{k[1]} << 32 | k[0];
  const int half_bits = std::max(1, (static_cast<int>(std::bit_width(n - 1)) + 1) / 2);
  // Cycle walking (Black & Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002): a
  // permutation of the larger power of four, followed until it falls into [0, n), permutes [0, n).
  uint64_t x = g % n;
  do x = feistel(key, x, half_bits);
  while (x >= n);
  return x;
}

std::vector<Micro> deal(uint64_t first, int64_t global, int64_t micro, int rank, int size) {
  const int64_t total = (global + micro - 1) / micro;
  std::vector<Micro> mine;
  for (int64_t i = total * rank / size; i < total * (rank + 1) / size; ++i)
    mine.push_back({first + static_cast<uint64_t>(i * micro), std::min(micro, global - i * micro)});
  return mine;
}

}  // namespace trainlaunch
