#include "ckpt/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>

namespace trainlaunch {

namespace {

using nlohmann::json;

constexpr int most_dimensions = 8;
constexpr uint64_t most_elements = uint64_t{1} << 56;

// Bytes of an element; the format has no others that are whole bytes.
std::optional<uint64_t> bytes_of(std::string_view dtype) {
  static const std::map<std::string_view, uint64_t> sizes{
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
      {"U32", 4},  {"F32", 4}, {"F64", 8}, {"I64", 8},     {"U64", 8}};
  const auto it = sizes.find(dtype);
  return it == sizes.end() ? std::nullopt : std::optional(it->second);
}

// Walks a text before it is taken in: stops at a key that occurs twice in an object, which the
// library would take, and at nesting that nobody needs and that costs memory.
class Walk final : public json::json_sax_t {
 public:
  const std::string& objection() const { return objection_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(json::number_integer_t) override { return true; }
  bool number_unsigned(json::number_unsigned_t) override { return true; }
  bool number_float(json::number_float_t, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(json::binary_t&) override { return true; }
  bool start_object(size_t) override { return open(); }
  bool start_array(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    if (open_.back().insert(name).second) return true;
    objection_ = "its header has " + name + " twice";
    return false;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool open() {
    open_.emplace_back();
    return open_.size() <= 4;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::vector<std::set<std::string>> open_;  // the keys so far of what is open
  std::string objection_;
};

Result<json> parse(std::string_view text) {
  Walk walk;
  if (!json::sax_parse(text, &walk))
    return fail(walk.objection().empty() ? "its header is no JSON object of tensors"
                                         : walk.objection());
  json j = json::parse(text, nullptr, false);
  if (!j.is_object()) return fail("its header is no JSON object of tensors");
  return j;
}

bool is_list_of_sizes(const json& j) {
  return j.is_array() && std::all_of(j.begin(), j.end(), [](const json& n) {
           return n.is_number_unsigned() && n.get<uint64_t>() <= most_elements;
         });
}

// Its bytes are counted from the end of the header, which is at `data`.
Result<StoredTensor> tensor_from(const std::string& name, const json& j, uint64_t data) {
  const std::string called = "tensor " + name;
  const bool shaped = j.is_object() && j.size() == 3 && j.contains("dtype") &&
                      j["dtype"].is_string() && j.contains("shape") &&
                      is_list_of_sizes(j["shape"]) && j.contains("data_offsets") &&
                      is_list_of_sizes(j["data_offsets"]) && j["data_offsets"].size() == 2;
  if (!shaped) return fail(called + " has not a dtype, a shape and two data_offsets");
  StoredTensor t{name, j["dtype"].get<std::string>(), {}, 0, 0};
  const auto element = bytes_of(t.dtype);
  if (!element) return fail(called + " is of the unknown type " + t.dtype);
  if (j["shape"].size() > most_dimensions) return fail(called + " has too many dimensions");
  uint64_t elements = 1;
  for (const json& n : j["shape"]) {
    const uint64_t size = n.get<uint64_t>();
    if (size > 0 && elements > most_elements / size) return fail(called + " is too large");
    elements *= size;
    t.shape.push_back(static_cast<int64_t>(size));
  }
  const uint64_t begin = j["data_offsets"][0].get<uint64_t>(),
                 end = j["data_offsets"][1].get<uint64_t>();
  if (begin > end || end - begin != elements * *element)
    return fail(called + " has data_offsets that do not go with its type and shape");
  t.begin = data + begin;
  t.end = data + end;
  return t;
}

}  // namespace

int64_t StoredTensor::elements() const {
  int64_t n = 1;
  for (int64_t size : shape) n *= size;
  return n;
}

Result<uint64_t> safetensors_header_length(std::string_view first, uint64_t file_bytes,
                                           const std::string& what) {
  if (first.size() < 8 || file_bytes < 8)
    return fail(what + " is too short for a safetensors file");
  uint64_t length = 0;
  for (int byte = 7; byte >= 0; --byte)
    length = length << 8 | static_cast<uint8_t>(first[static_cast<size_t>(byte)]);
  if (length > safetensors_header_limit || length > file_bytes - 8)
    return fail(what + " is no safetensors file: its header would have " + std::to_string(length) +
                " bytes");
  return length;
}

Result<std::vector<StoredTensor>> parse_safetensors(std::string_view header, uint64_t file_bytes,
                                                    const std::string& what) {
  auto j = parse(header);
  if (!j) return fail(what + ": " + j.error().what);
  const uint64_t data = 8 + header.size();
  std::vector<StoredTensor> tensors;
  for (const auto& [name, value] : j->items()) {
    if (name == "__metadata__") {
      const bool texts = value.is_object() && std::all_of(value.begin(), value.end(),
                                                          [](auto& v) { return v.is_string(); });
      if (!texts) return fail(what + ": its __metadata__ is not of texts");
      continue;
    }
    auto tensor = tensor_from(name, value, data);
    if (!tensor) return fail(what + ": " + tensor.error().what);
    tensors.push_back(std::move(*tensor));
  }
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t at = data;
  for (const StoredTensor& t : tensors) {
    if (t.begin != at)
      return fail(what + ": tensor " + t.name + (t.begin < at ? " overlaps" : " does not follow") +
                  " the one before it");
    at = t.end;
  }
  if (at != file_bytes)
    return fail(what + " has " + std::to_string(file_bytes) + " bytes, and its tensors end at " +
                std::to_string(at));
  return tensors;
}

std::string safetensors_frame(std::string json, size_t alignment) {
  constexpr size_t prefix = 8;
  json.append((alignment - (prefix + json.size()) % alignment) % alignment, ' ');
  std::string length;
  for (size_t byte = 0; byte < prefix; ++byte)
    length.push_back(static_cast<char>(uint64_t{json.size()} >> (8 * byte)));
  return length + json;
}

std::string safetensors_head(const std::vector<NamedShape>& tensors,
                             const std::map<std::string, std::string>& metadata) {
  // As in the order of the data, which readers like.
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata;
  uint64_t at = 0;
  for (const NamedShape& t : tensors) {
    uint64_t bytes = sizeof(float);
    for (int64_t n : t.shape) bytes *= static_cast<uint64_t>(n);
    header[t.name] = {{"dtype", "F32"}, {"shape", t.shape}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  return safetensors_frame(header.dump(), 8);
}

}  // namespace trainlaunch
