#include "ckpt/shard_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ckpt/safetensors.h"

namespace trainlaunch {

namespace {

using nlohmann::json;

constexpr uint64_t alignment = 64;
constexpr uint64_t most_chunks = 4096;
constexpr size_t cached = size_t{256} << 10;  // what is digested is still near when it is written

uint64_t aligned(uint64_t n) { return (n + alignment - 1) / alignment * alignment; }

json tensor(const char* dtype, uint64_t elements, uint64_t begin, uint64_t end) {
  return {{"dtype", dtype}, {"shape", {elements}}, {"data_offsets", {begin, end}}};
}

std::string digest_of(std::span<const std::byte> bytes) {
  Digest digest;
  digest.update(bytes.data(), bytes.size());
  return digest.hex();
}

}  // namespace

ShardLayout lay_out(std::span<const Piece> owned) {
  ShardLayout layout;
  json header = json::object();
  uint64_t at = 0;  // from the end of the header
  for (size_t i = 0; i < owned.size(); ++i) {
    const Piece& p = owned[i];
    if (p.length == 0) continue;
    if (const uint64_t padded = aligned(at); padded != at) {
      header[".pad@" + std::to_string(at)] = tensor("U8", padded - at, at, padded);
      at = padded;
    }
    const uint64_t elements = static_cast<uint64_t>(p.length), end = at + elements * sizeof(float);
    header[p.tensor + "/" + p.slot + "@" + std::to_string(p.offset)] =
        tensor("F32", elements, at, end);
    layout.pieces.push_back(i);
    layout.positions.push_back(at);
    at = end;
  }
  layout.header = safetensors_frame(header.dump(), alignment);
  for (uint64_t& position : layout.positions) position += layout.header.size();
  layout.bytes = layout.header.size() + at;
  return layout;
}

uint64_t chunk_bytes(uint64_t file_bytes) {
  uint64_t chunk = uint64_t{4} << 20;
  while (file_bytes / chunk >= most_chunks) chunk *= 2;
  return chunk;
}

Result<ShardFile> write_shard(const Directory& dir, const std::string& name,
                              std::span<const std::byte> image) {
  const std::string what = "cannot write " + dir.path_of(name);
  auto fd = dir.create(name);
  if (!fd) return forward(fd);
  if (auto s = preallocate(fd->get(), image.size(), what); !s) return forward(s);
  ShardFile file{name, image.size(), chunk_bytes(image.size()), {}};
  for (size_t at = 0; at < image.size(); at += file.chunk) {
    const auto chunk = image.subspan(at, std::min<size_t>(file.chunk, image.size() - at));
    Digest digest;
    for (size_t i = 0; i < chunk.size(); i += cached) {
      const auto part = chunk.subspan(i, std::min(cached, chunk.size() - i));
      digest.update(part.data(), part.size());
      if (auto s = write_fully(fd->get(), part.data(), part.size(), what); !s) return forward(s);
    }
    file.digests.push_back(digest.hex());
    // Advice: the disk begins while the next chunk is digested. Whether it could is fsync's to say.
    (void)sync_file_range(fd->get(), static_cast<off64_t>(at), static_cast<off64_t>(chunk.size()),
                          SYNC_FILE_RANGE_WRITE);
  }
  if (fsync(fd->get()) != 0) return fail_errno(what);
  if (auto s = fd->close(what); !s) return forward(s);
  return file;
}

Result<ShardInput> ShardInput::open(const Directory& dir, const ShardFile& expected,
                                    bool from_storage) {
  auto file = dir.read(expected.name);
  if (!file) return forward(file);
  std::string path = dir.path_of(expected.name);
  if (file->bytes != expected.bytes)
    return fail(path + " is damaged: it has " + std::to_string(file->bytes) + " bytes instead of " +
                std::to_string(expected.bytes));
  // Advice: where it is not taken, the reading is as good as the cache.
  if (from_storage) (void)posix_fadvise(file->fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  return ShardInput(std::move(file->fd), std::move(path), expected);
}

Result<std::span<const std::byte>> ShardInput::chunk(size_t index) {
  const uint64_t begin = index * expected_->chunk,
                 end = std::min(expected_->bytes, begin + expected_->chunk);
  // At most the file's own size, which has been seen.
  if (buffer_.empty()) buffer_.resize(std::min(expected_->bytes, expected_->chunk));
  const std::span<std::byte> bytes(buffer_.data(), end - begin);
  if (auto s = read_fully(fd_.get(), bytes.data(), bytes.size(), begin, "cannot read " + path_); !s)
    return forward(s);
  if (digest_of(bytes) != expected_->digests[index])
    return fail(path_ + " is damaged: the digest of bytes " + std::to_string(begin) + " to " +
                std::to_string(end) + " is wrong");
  return bytes;
}

Status verify_shard(const Directory& dir, const ShardFile& expected, size_t first, size_t last,
                    bool from_storage) {
  auto input = ShardInput::open(dir, expected, from_storage);
  if (!input) return forward(input);
  for (size_t i = first; i < last; ++i)
    if (auto chunk = input->chunk(i); !chunk) return forward(chunk);
  return {};
}

}  // namespace trainlaunch
