// One rank's safetensors file: laid out, written, and read back with its digests.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ckpt/directory.h"
#include "ckpt/manifest.h"

namespace trainlaunch {

// Where each piece goes. Pieces of no elements are left out.
struct ShardLayout {
  std::string header;               // the length, the JSON and its padding
  std::vector<size_t> pieces;       // which of the pieces, in order
  std::vector<uint64_t> positions;  // of each of them in the file, multiples of 64
  uint64_t bytes = 0;
};
ShardLayout lay_out(std::span<const Piece> owned);

// Of a file of so many bytes: no more digests than a message of the control channel has room for.
uint64_t chunk_bytes(uint64_t file_bytes);

// Writes the file, synced and closed. The digests are of the bytes in memory, each taken just
// before they are handed over, so that whatever the way to the disk does to them is found.
Result<ShardFile> write_shard(const Directory& dir, const std::string& name,
                              std::span<const std::byte> image);

// A shard that is read by chunks, in any order.
class ShardInput {
 public:
  // Compares the size. `from_storage`: what the system remembers of the file is forgotten first.
  static Result<ShardInput> open(const Directory& dir, const ShardFile& expected,
                                 bool from_storage = false);
  // Valid until the next call. A digest that is not as expected is an error.
  Result<std::span<const std::byte>> chunk(size_t index);

 private:
  ShardInput(Fd fd, std::string path, const ShardFile& expected)
      : fd_(std::move(fd)), path_(std::move(path)), expected_(&expected) {}

  Fd fd_;
  std::string path_;
  const ShardFile* expected_;
  std::vector<std::byte> buffer_;
};

// Reads chunks [first, last) and compares their digests.
Status verify_shard(const Directory& dir, const ShardFile& expected, size_t first, size_t last,
                    bool from_storage = false);

}  // namespace trainlaunch
