// Counter-based random numbers (Philox4x32-10: Salmon et al., "Parallel Random Numbers: As Easy as
// 1, 2, 3", SC'11). The same key and counter give the same numbers on every rank, at every world
// size and after every restart, so there is no generator state to save.
#pragma once

#include <array>
#include <cstdint>

namespace trainlaunch {

using Philox = std::array<uint32_t, 4>;

// What a key is drawn for; two uses with different streams never share numbers.
enum class RandomStream : uint32_t { init = 1, order = 2, sample = 3, rounding = 4 };

constexpr Philox philox(uint64_t key, const Philox& counter) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  Philox c = counter;
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(a)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// The usual call: numbers for one (seed, stream, index, position).
constexpr Philox philox(uint64_t seed, RandomStream stream, uint64_t index, uint32_t position) {
  return philox(seed, {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), position,
                       static_cast<uint32_t>(stream)});
}

// Uniform in (0, 1]: never zero, so a logarithm of it is finite.
constexpr double unit(uint32_t x) { return (x + 1.0) / 4294967296.0; }

}  // namespace trainlaunch
