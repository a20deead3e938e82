#include "ckpt/starts.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace trainlaunch {

namespace {

using nlohmann::json;

constexpr const char* file_name = "run.starts";
constexpr uint64_t longest = 4096;  // bytes
constexpr int64_t most = 1'000'000;

}  // namespace

Result<int> count_start(const Directory& run, uint64_t step, const std::string& config_digest) {
  int64_t before = 0;
  if (auto text = run.read_text(file_name, longest)) {
    const json j = json::parse(*text, nullptr, false);
    const bool same = j.is_object() && j.value("step", json()) == json(step) &&
                      j.value("config", json()) == json(config_digest);
    if (same && j.value("starts", json()).is_number_integer())
      before = std::clamp<int64_t>(j["starts"].get<int64_t>(), 0, most);
  }
  const json now{{"step", step}, {"config", config_digest}, {"starts", before + 1}};
  if (auto s = run.write_over(file_name, now.dump() + "\n"); !s) return forward(s);
  return static_cast<int>(before + 1);
}

}  // namespace trainlaunch
