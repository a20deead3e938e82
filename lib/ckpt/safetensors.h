// The safetensors format: eight bytes with the length of a JSON object, the object, and the tensors
// it names, one after the other without holes (the format's description:
// https://github.com/huggingface/safetensors). Reading trusts nothing: lengths are compared with
// the file before anything is taken from them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/base.h"

namespace trainlaunch {

struct StoredTensor {
  std::string name, dtype;  // "F32", "BF16", ...
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes, from the start of the file
  int64_t elements() const;
};

inline constexpr uint64_t safetensors_header_limit = 100'000'000;  // the format's own

// The length of the JSON object, from the first eight bytes of a file of so many. `what` begins
// each error, here and below.
Result<uint64_t> safetensors_header_length(std::string_view first, uint64_t file_bytes,
                                           const std::string& what);
// The tensors, by their place in the file. Refuses: text that is not one JSON object of the right
// form, a name given twice, types the format does not have, sizes that do not go with type and
// shape, and ranges that do not cover the rest of the file exactly once.
Result<std::vector<StoredTensor>> parse_safetensors(std::string_view header, uint64_t file_bytes,
                                                    const std::string& what);

// The beginning of a file: the length, this JSON, and spaces up to a multiple of `alignment`.
std::string safetensors_frame(std::string json, size_t alignment);

// The beginning of a file with these tensors, all F32, in this order: length, JSON, and spaces up
// to a multiple of eight bytes.
struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
};
std::string safetensors_head(const std::vector<NamedShape>& tensors,
                             const std::map<std::string, std::string>& metadata);

}  // namespace trainlaunch
