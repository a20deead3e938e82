#include "ckpt/safetensors.h"

#include "fuzz.h"

namespace fuzz {

using namespace trainlaunch;

void safetensors(std::string_view input) {
  auto length = safetensors_header_length(input, input.size(), "file");
  if (!length) return require(!length.error().what.empty(), "an error says something");
  require(*length <= input.size() - 8, "a header lies within its file");
  const auto tensors = parse_safetensors(input.substr(8, *length), input.size(), "file");
  if (!tensors) return require(!tensors.error().what.empty(), "an error says something");
  uint64_t at = 8 + *length;
  for (const StoredTensor& t : *tensors) {
    require(t.begin == at && t.end >= t.begin && t.end <= input.size(), "no holes, no overlap");
    require(t.elements() >= 0, "sizes are sizes");
    require(static_cast<uint64_t>(t.elements()) <= t.end - t.begin, "no more than there is");
    at = t.end;
  }
  require(at == input.size(), "every byte belongs to a tensor");
}

}  // namespace fuzz
