// One rank's safetensors file: laid out, written, and read back with its digest.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/directory.h"
#include "ckpt/manifest.h"

namespace trainlaunch {

// Where each piece goes. Pieces of no elements are left out.
struct ShardLayout {
  std::string header;  // the length, the JSON and its padding
  std::vector<Piece> pieces;
  std::vector<uint64_t> positions;  // of each piece in the file, multiples of 64
  uint64_t bytes = 0;
};
ShardLayout lay_out(std::span<const Piece> owned);

// Writes the file, synced and closed. The digest is of the bytes that were handed to write(2).
Result<ShardFile> write_shard(const Directory& dir, const std::string& name,
                              const ShardLayout& layout, Device& device, Stream& stream);

// Reads a whole file in order, in chunks whose sizes are multiples of 64 bytes but for the last,
// and compares size and digest with what is expected.
using ChunkSink = std::function<Status(uint64_t position, std::span<const std::byte>)>;
Status read_shard(const Directory& dir, const ShardFile& expected, const ChunkSink& sink);

}  // namespace trainlaunch
