#include "fuzz.h"

#include <cstdint>

namespace {

constexpr struct {
  std::string_view name;
  void (*run)(std::string_view);
} targets[] = {
    {"topology", fuzz::topology}, {"answer", fuzz::answer},
    {"options", fuzz::options},   {"config", fuzz::config},
    {"hosts", fuzz::hosts},       {"lists", fuzz::lists},
    {"facts", fuzz::facts},       {"safetensors", fuzz::safetensors},
};

void (*chosen)(std::string_view) = nullptr;

}  // namespace

extern "C" __attribute__((visibility("default"))) int LLVMFuzzerInitialize(int*, char***) {
  const char* name = std::getenv("TL_FUZZ");
  for (const auto& target : targets)
    if (name && target.name == name) chosen = target.run;
  if (chosen) return 0;
  std::fprintf(stderr, "TL_FUZZ must name one of:");
  for (const auto& target : targets) std::fprintf(stderr, " %s", target.name.data());
  std::fprintf(stderr, "\n");
  std::exit(2);
}

extern "C" __attribute__((visibility("default"))) int LLVMFuzzerTestOneInput(const uint8_t* data,
                                                                             size_t size) {
  chosen({reinterpret_cast<const char*>(data), size});
  return 0;
}
