#include "comm/call.h"

#include <xxhash.h>

#include <array>
#include <cstdio>

namespace trainlaunch {

namespace {

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::reduce_scatter:
      return "reduce_scatter";
    case Kind::all_reduce:
      return "all_reduce";
    case Kind::all_gather:
      return "all_gather";
    case Kind::all_sum:
      return "all_sum";
    case Kind::broadcast:
      return "broadcast";
    case Kind::barrier:
      return "barrier";
  }
  return "?";
}

}  // namespace

void Call::sign() {
  const std::array<uint64_t, 6> parts{
      ticket,  static_cast<uint64_t>(kind) << 32 | static_cast<uint32_t>(root),
      memory,  offset,
      bytes(), static_cast<uint64_t>(wire)};
  const uint64_t seed = XXH3_64bits(parts.data(), sizeof(parts));
  signature =
      XXH3_64bits_withSeed(owners.begin.data(), owners.begin.size() * sizeof(int64_t), seed);
}

std::string describe(const Call& call) {
  std::array<char, 64> text;
  const double bytes = static_cast<double>(call.bytes());
  const char* unit = bytes >= 1e6 ? "MB" : bytes >= 1e3 ? "kB" : "B";
  const double scale = bytes >= 1e6 ? 1e6 : bytes >= 1e3 ? 1e3 : 1;
  const int digits = scale == 1 ? 0 : 1;
  std::snprintf(text.data(), text.size(), "%s %llu (%.*f %s)", name_of(call.kind),
                static_cast<unsigned long long>(call.ticket), digits, bytes / scale, unit);
  return text.data();
}

std::string describe_rank(const World& world, int rank) {
  return "rank " + std::to_string(rank) + " on " + world.node_name(rank);
}

}  // namespace trainlaunch
