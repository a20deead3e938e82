#include "ckpt/shard_file.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

namespace trainlaunch {

namespace {

using nlohmann::json;

constexpr uint64_t alignment = 64;
constexpr size_t chunk_bytes = size_t{4} << 20;

uint64_t aligned(uint64_t n) { return (n + alignment - 1) / alignment * alignment; }

json tensor(const char* dtype, uint64_t elements, uint64_t begin, uint64_t end) {
  return {{"dtype", dtype}, {"shape", {elements}}, {"data_offsets", {begin, end}}};
}

// A file being written: what goes in is digested on the way.
class Output {
 public:
  Output(Fd fd, std::string what) : fd_(std::move(fd)), what_(std::move(what)) {}

  Status put(const void* data, size_t size) {
    digest_.update(data, size);
    bytes_ += size;
    return write_fully(fd_.get(), data, size, what_);
  }
  Result<ShardFile> finish(const std::string& name) {
    if (fsync(fd_.get()) != 0) return fail_errno(what_);
    if (auto s = fd_.close(what_); !s) return forward(s);
    return ShardFile{name, bytes_, digest_.hex()};
  }
  uint64_t bytes() const { return bytes_; }

 private:
  Fd fd_;
  std::string what_;
  Digest digest_;
  uint64_t bytes_ = 0;
};

}  // namespace

ShardLayout lay_out(std::span<const Piece> owned) {
  ShardLayout layout;
  json header = json::object();
  uint64_t at = 0;  // from the end of the header
  std::vector<uint64_t> offsets;
  for (const Piece& p : owned) {
    if (p.length == 0) continue;
    if (const uint64_t padded = aligned(at); padded != at) {
      header[".pad@" + std::to_string(at)] = tensor("U8", padded - at, at, padded);
      at = padded;
    }
    const uint64_t elements = static_cast<uint64_t>(p.length), end = at + elements * sizeof(float);
    header[p.tensor + "/" + p.slot + "@" + std::to_string(p.offset)] =
        tensor("F32", elements, at, end);
    layout.pieces.push_back(p);
    offsets.push_back(at);
    at = end;
  }
  std::string text = header.dump();
  text.append(aligned(8 + text.size()) - 8 - text.size(), ' ');
  for (int byte = 0; byte < 8; ++byte)
    layout.header.push_back(static_cast<char>(uint64_t{text.size()} >> (8 * byte)));
  layout.header += text;
  for (uint64_t o : offsets) layout.positions.push_back(layout.header.size() + o);
  layout.bytes = layout.header.size() + at;
  return layout;
}

Result<ShardFile> write_shard(const Directory& dir, const std::string& name,
                              const ShardLayout& layout, Device& device, Stream& stream) {
  auto fd = dir.create(name);
  if (!fd) return forward(fd);
  Output out(std::move(*fd), "cannot write " + dir.path_of(name));
  if (auto s = out.put(layout.header.data(), layout.header.size()); !s) return forward(s);

  const std::vector<std::byte> zeros(alignment);
  std::vector<float> chunk(chunk_bytes / sizeof(float));
  for (size_t i = 0; i < layout.pieces.size(); ++i) {
    if (auto s = out.put(zeros.data(), layout.positions[i] - out.bytes()); !s) return forward(s);
    const View mem = layout.pieces[i].mem;
    for (int64_t at = 0; at < mem.size();) {
      const int64_t n = std::min(mem.size() - at, static_cast<int64_t>(chunk.size()));
      device.download(stream, View(chunk.data(), DType::f32, {n}), mem.slice(at, n));
      if (auto s = stream.record().wait(Deadline::in(storage_timeout)); !s) return forward(s);
      if (auto s = out.put(chunk.data(), static_cast<size_t>(n) * sizeof(float)); !s)
        return forward(s);
      at += n;
    }
  }
  return out.finish(name);
}

Status read_shard(const Directory& dir, const ShardFile& expected, const ChunkSink& sink) {
  const std::string what = dir.path_of(expected.name);
  auto file = dir.read(expected.name);
  if (!file) return forward(file);
  if (file->bytes != expected.bytes)
    return fail(what + " is damaged: it has " + std::to_string(file->bytes) + " bytes instead of " +
                std::to_string(expected.bytes));
  Digest digest;
  std::vector<std::byte> chunk(std::min<uint64_t>(chunk_bytes, expected.bytes));
  for (uint64_t at = 0; at < expected.bytes;) {
    const size_t n = std::min<uint64_t>(chunk.size(), expected.bytes - at);
    if (auto s = read_fully(file->fd.get(), chunk.data(), n, at, "cannot read " + what); !s)
      return s;
    digest.update(chunk.data(), n);
    if (auto s = sink(at, {chunk.data(), n}); !s) return s;
    at += n;
  }
  if (digest.hex() != expected.digest) return fail(what + " is damaged: its digest is wrong");
  return {};
}

}  // namespace trainlaunch
