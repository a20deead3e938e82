#include "boot/message.h"

#include "boot/boot.h"

namespace trainlaunch {
namespace {

constexpr size_t head_bytes = 1 + 4 + 8 + 8;

void put_string(std::string& out, std::string_view s) {
  put_u32(out, static_cast<uint32_t>(s.size()));
  out.append(s);
}

// Takes n bytes off the front; false when there are fewer.
bool take(std::string_view& rest, size_t n, std::string_view& out) {
  if (rest.size() < n) return false;
  out = rest.substr(0, n);
  rest.remove_prefix(n);
  return true;
}

bool take_string(std::string_view& rest, std::string_view& out) {
  std::string_view length;
  return take(rest, 4, length) && take(rest, get_u32(length), out);
}

}  // namespace

void put_u32(std::string& out, uint32_t x) {
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(x >> shift));
}

void put_u64(std::string& out, uint64_t x) {
  for (int shift = 0; shift < 64; shift += 8) out.push_back(static_cast<char>(x >> shift));
}

uint64_t get_u64(std::string_view bytes) {
  uint64_t x = 0;
  for (size_t i = 8; i-- > 0;) x = x << 8 | static_cast<uint8_t>(bytes[i]);
  return x;
}

uint32_t get_u32(std::string_view bytes) {
  uint32_t x = 0;
  for (size_t i = 4; i-- > 0;) x = x << 8 | static_cast<uint8_t>(bytes[i]);
  return x;
}

size_t max_body(size_t count) {
  return head_bytes + 4 + Message::max_name + 4 + count * (4 + Control::max_value);
}

std::string encode(const Message& m) {
  std::string out;
  size_t bytes = head_bytes + 8 + m.name.size();
  for (const std::string& v : m.values) bytes += 4 + v.size();
  out.reserve(bytes);
  out.push_back(static_cast<char>(m.kind));
  put_u32(out, m.generation);
  put_u64(out, m.id);
  put_u64(out, static_cast<uint64_t>(m.number));
  put_string(out, m.name);
  put_u32(out, static_cast<uint32_t>(m.values.size()));
  for (const std::string& v : m.values) put_string(out, v);
  return out;
}

Result<Message> decode(std::string_view rest) {
  auto bad = [] { return fail("control channel: a malformed message"); };
  std::string_view head, name, count;
  if (!take(rest, head_bytes, head) || !take_string(rest, name) || !take(rest, 4, count))
    return bad();
  Message m;
  const auto kind = static_cast<uint8_t>(head[0]);
  if (kind < static_cast<uint8_t>(Message::Kind::put) ||
      kind > static_cast<uint8_t>(Message::Kind::progress))
    return bad();
  m.kind = static_cast<Message::Kind>(kind);
  m.generation = get_u32(head.substr(1));
  m.id = get_u64(head.substr(5));
  m.number = static_cast<int64_t>(get_u64(head.substr(13)));
  m.name = name;
  // Each value takes four bytes at least: a count beyond that is not believed.
  const uint32_t n = get_u32(count);
  if (n > rest.size() / 4) return bad();
  m.values.reserve(n);
  for (uint32_t i = 0; i < n; ++i) {
    std::string_view value;
    if (!take_string(rest, value)) return bad();
    m.values.emplace_back(value);
  }
  if (!rest.empty()) return bad();
  return m;
}

}  // namespace trainlaunch
