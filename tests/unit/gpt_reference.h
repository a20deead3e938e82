// What PyTorch computed for a small GPT-2 (tests/data/make_gpt_reference.py), and the formulas that
// give both sides the same weights and tokens.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/model.h"

namespace trainlaunch::test {

// n numbers in [-0.5, 0.5), exact in f32.
inline std::vector<double> noise(uint32_t seed, int64_t n) {
  std::vector<double> out(n);
  for (int64_t i = 0; i < n; ++i) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + seed * 2246822519u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    x *= 3266489917u;
    x ^= x >> 16;
    out[i] = (x >> 16) / 65536.0 - 0.5;
  }
  return out;
}

inline std::vector<double> reference_weight(std::span<const ParamSpec> specs, int param) {
  const ParamSpec& spec = specs[param];
  std::vector<double> w = noise(static_cast<uint32_t>(param) + 1, spec.size());
  for (double& x : w) {
    x *= spec.shape.size() > 1 ? 0.5 : 0.25;
    if (spec.init.kind == Init::one) x += 1.0;
  }
  return w;
}

struct HostBatch {
  std::vector<int32_t> tokens, targets;
  int64_t sequences, context;

  // Sequences [first, first + count) of it.
  Batch part(int64_t first, int64_t count) {
    return {View(tokens.data() + first * context, DType::i32, {count, context}),
            View(targets.data() + first * context, DType::i32, {count, context})};
  }
  Batch all() { return part(0, sequences); }
};

inline HostBatch noise_batch(int64_t sequences, int64_t context, int64_t vocab) {
  HostBatch b{{}, {}, sequences, context};
  const int64_t n = sequences * context;
  for (double x : noise(1001, n)) b.tokens.push_back(static_cast<int32_t>((x + 0.5) * vocab));
  for (double x : noise(1002, n)) {
    const bool ignored = b.targets.size() % 7 == 3;
    b.targets.push_back(ignored ? -1 : static_cast<int32_t>((x + 0.5) * vocab));
  }
  return b;
}

inline const nlohmann::json& reference() {
  static const nlohmann::json j = [] {
    std::ifstream in(TEST_DATA "/gpt_reference.json");
    REQUIRE(in);
    return nlohmann::json::parse(in);
  }();
  return j;
}

inline GptConfig reference_config() {
  const auto& c = reference()["config"];
  return {c["layers"], c["heads"], c["width"], c["context"], c["vocab"]};
}
inline HostBatch reference_batch() {
  const auto& c = reference()["config"];
  return noise_batch(c["batch"], c["context"], c["vocab"]);
}

// A tensor against its summary: everything within `tolerance` of the tensor's norm.
inline void check_summary(const std::string& name, const std::vector<double>& x,
                          const nlohmann::json& summary, double tolerance) {
  INFO(name);
  REQUIRE(x.size() == summary["size"]);
  const double expected_norm = summary["norm"], allowed = tolerance * (expected_norm + 1e-3);
  double squares = 0;
  for (double v : x) squares += v * v;
  CHECK(std::abs(std::sqrt(squares) - expected_norm) <= allowed);
  for (int k = 0; k < 3; ++k) {
    const std::vector<double> direction = noise(2000 + k, static_cast<int64_t>(x.size()));
    double dot = 0, length = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      dot += x[i] * direction[i];
      length += direction[i] * direction[i];
    }
    INFO("product with noise vector ", k);
    CHECK(std::abs(dot - summary["dots"][k].get<double>()) <= allowed * std::sqrt(length));
  }
  for (size_t k = 0; k < 8; ++k) {
    INFO("element ", x.size() * k / 8);
    CHECK(std::abs(x[x.size() * k / 8] - summary["elements"][k].get<double>()) <= allowed);
  }
}

}  // namespace trainlaunch::test
