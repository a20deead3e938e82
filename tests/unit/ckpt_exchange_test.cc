// safetensors files, honest and hostile, and what two checkpoints differ in.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "ckpt/architecture.h"
#include "ckpt/catalog.h"
#include "ckpt/compare.h"
#include "ckpt/exchange.h"
#include "ckpt/safetensors.h"
#include "ckpt_testing.h"

using namespace trainlaunch;

namespace {

std::string eight_bytes(uint64_t n) {
  std::string text;
  for (int byte = 0; byte < 8; ++byte) text.push_back(static_cast<char>(n >> (8 * byte)));
  return text;
}

// What is said against a file with this header and so many bytes of data.
std::string objection(const std::string& header, uint64_t data) {
  auto tensors = parse_safetensors(header, 8 + header.size() + data, "x");
  return tensors ? "" : tensors.error().what;
}

std::string folder(const std::string& path, const std::string& header, const std::string& data,
                   const std::string& config = R"({"n_head": 2})") {
  std::filesystem::create_directories(path);
  write_file(path + "/model.safetensors", eight_bytes(header.size()) + header + data);
  write_file(path + "/config.json", config);
  return path;
}

// A model of one layer with weights of a formula, as a folder for import_weights.
struct Small {
  GptConfig config{1, 2, 8, 4, 256};
  std::vector<NamedShape> tensors;
  std::string data;
  Small() {
    auto model = make_gpt(config);
    REQUIRE(model);
    int64_t i = 0;
    for (const ParamSpec& p : (*model)->params()) {
      tensors.push_back({p.hf, p.shape});
      for (int64_t k = 0; k < p.size(); ++k) {
        const float value = static_cast<float>(i++ % 977) / 64.0f - 7.0f;
        data.append(reinterpret_cast<const char*>(&value), sizeof value);
      }
    }
  }
  std::string file() const { return safetensors_head(tensors, {}) + data; }
  std::string at(const std::string& path, const std::string& conf = R"({"n_head": 2})") const {
    std::filesystem::create_directories(path);
    write_file(path + "/model.safetensors", file());
    write_file(path + "/config.json", conf);
    return path;
  }
};

std::string import_error(const std::string& input, const std::string& run,
                         std::optional<uint64_t> heads = std::nullopt) {
  auto done = import_weights(input, run, heads, {});
  if (done) return "";
  CHECK(done.error().exit == exit_code::usage);
  CHECK(!std::filesystem::exists(run));
  return done.error().what;
}

}  // namespace

TEST_CASE("a safetensors header is read as it was written") {
  const std::vector<NamedShape> shapes{{"a", {2, 3}}, {"b", {}}, {"c", {0, 5}}};
  const std::string head = safetensors_head(shapes, {{"format", "pt"}});
  CHECK(head.size() % 8 == 0);
  auto length = safetensors_header_length(head, head.size() + 28, "x");
  REQUIRE(length);
  CHECK(*length == head.size() - 8);
  auto tensors = parse_safetensors(head.substr(8), head.size() + 28, "x");
  REQUIRE(tensors);
  REQUIRE(tensors->size() == 3);
  CHECK((*tensors)[0].name == "a");
  CHECK((*tensors)[0].shape == std::vector<int64_t>{2, 3});
  CHECK((*tensors)[0].begin == head.size());
  CHECK((*tensors)[0].end == head.size() + 24);
  CHECK((*tensors)[1].elements() == 1);
  CHECK((*tensors)[2].elements() == 0);
}

TEST_CASE("a hostile safetensors header is refused") {
  const std::string a = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  REQUIRE(objection("{" + a + "}", 4) == "");
  CHECK(objection("{" + a + "}   ", 4) == "");
  CHECK(objection("", 4) != "");
  CHECK(objection("[]", 0) != "");
  CHECK(objection("{" + a, 4) != "");
  CHECK(objection("{" + a + "} x", 4) != "");
  CHECK(objection("{" + a + "," + a + "}", 4).find("twice") != std::string::npos);
  CHECK(objection(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4)
            .find("twice") != std::string::npos);
  CHECK(objection("{" + a + "}", 5).find("end at") != std::string::npos);
  CHECK(objection("{" + a + "}", 3).find("end at") != std::string::npos);
  const auto one = [](const std::string& dtype, const std::string& shape,
                      const std::string& offsets) {
    return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}}";
  };
  CHECK(objection(one("\"F32\"", "[1]", "[0,4]"), 4) == "");
  CHECK(objection(one("\"F33\"", "[1]", "[0,4]"), 4).find("F33") != std::string::npos);
  CHECK(objection(one("1", "[1]", "[0,4]"), 4) != "");
  CHECK(objection(one("\"F32\"", "[NaN]", "[0,4]"), 4) != "");
  CHECK(objection(one("\"F32\"", "[1e0]", "[0,4]"), 4) != "");
  CHECK(objection(one("\"F32\"", "[-1]", "[0,4]"), 4) != "");
  CHECK(objection(one("\"F32\"", "1", "[0,4]"), 4) != "");
  CHECK(objection(one("\"F32\"", "[1]", "[4,0]"), 4) != "");
  CHECK(objection(one("\"F32\"", "[1]", "[0,8]"), 8) != "");
  CHECK(objection(one("\"F32\"", "[1]", "[0]"), 4) != "");
  CHECK(objection(one("\"F32\"", "[1]", "[0,4,4]"), 4) != "");
  // Sizes whose product, or whose bytes, are more than 64 bits have.
  CHECK(objection(one("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0) != "");
  CHECK(objection(one("\"F64\"", "[72057594037927936,72057594037927936]", "[0,0]"), 0) != "");
  CHECK(objection(one("\"F32\"", "[4611686018427387905]", "[0,4]"), 4) != "");
  CHECK(objection(one("\"F32\"", "[1]", "[18446744073709551612,18446744073709551616]"), 4) != "");
  CHECK(objection(one("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4) != "");
  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)" + first +
           R"(},"b":{"dtype":"F32","shape":[1],"data_offsets":)" + second + "}}";
  };
  CHECK(objection(two("[0,4]", "[4,8]"), 8) == "");
  CHECK(objection(two("[4,8]", "[0,4]"), 8) == "");
  CHECK(objection(two("[0,4]", "[0,4]"), 4).find("overlaps") != std::string::npos);
  CHECK(objection(two("[0,4]", "[8,12]"), 12).find("follow") != std::string::npos);
  CHECK(objection(R"({"__metadata__":{"a":1}})", 0).find("__metadata__") != std::string::npos);
  CHECK(objection(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}})", 4) != "");
  CHECK(objection("{\"a\xff\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4) != "");
  CHECK(objection(std::string(1'000'000, '['), 0) != "");
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  CHECK(objection(deep, 0) != "");
}

TEST_CASE("the length of a safetensors header is compared with the file") {
  const auto refused = [](uint64_t length, uint64_t file) {
    return !safetensors_header_length(eight_bytes(length), file, "x");
  };
  CHECK(!refused(2, 10));
  CHECK(refused(3, 10));
  CHECK(refused(~uint64_t{0}, 10));
  CHECK(refused(uint64_t{1} << 63, 10));
  CHECK(refused(safetensors_header_limit + 1, uint64_t{1} << 40));
  CHECK(refused(0, 7));
  CHECK(!safetensors_header_length("1234567", 7, "x"));
}

TEST_CASE("export gives back what import took, bit for bit") {
  Temporary dir;
  const Small small;
  auto imported = import_weights(small.at(dir / "in"), dir / "run", std::nullopt, {});
  REQUIRE(imported);
  CHECK(imported->path == (dir / "run") + "/step-000000000");
  CHECK(imported->warnings.empty());
  auto checkpoint = find_checkpoint(dir / "run", std::nullopt);
  REQUIRE(checkpoint);
  CHECK(verify_checkpoint(*checkpoint, {}).damage.empty());
  auto manifest = read_manifest(*checkpoint);
  REQUIRE(manifest);
  CHECK(manifest->state.updates == 0);
  CHECK(manifest->state.samples == 0);
  auto config = architecture_of(manifest->state);
  REQUIRE(config);
  CHECK(config->heads == 2);
  CHECK(config->context == 4);
  REQUIRE(export_weights(*checkpoint, dir / "out", false, {}));
  CHECK(entries(dir / "out") == std::vector<std::string>{"config.json", "model.safetensors"});
  const std::string out = read_file(dir / "out/model.safetensors");
  CHECK(out.substr(out.size() - small.data.size()) == small.data);
  REQUIRE(import_weights(dir / "out", dir / "again", std::nullopt, {}));
  auto again = find_checkpoint(dir / "again", std::nullopt);
  auto same = compare(*checkpoint, *again, "", {});
  REQUIRE(same);
  CHECK(same->equal());
  CHECK(same->slots.at("weight").elements * sizeof(float) == small.data.size());
  CHECK(!import_weights(dir / "out", dir / "again", std::nullopt, {}));  // it has begun already
}

TEST_CASE("F16 and BF16 weights are converted") {
  Temporary dir;
  // 1.0, -2.0, 65504, the smallest subnormal number, infinity; and 1.0, -2.0 of BF16.
  const std::vector<uint16_t> halves{0x3c00, 0xc000, 0x7bff, 0x0001, 0x7c00, 0x8000};
  const std::vector<float> values{1.0f, -2.0f, 65504.0f, 0x1p-24f, INFINITY, -0.0f};
  for (const bool half : {true, false}) {
    const Small small;
    std::string header = "{", data;
    uint64_t at = 0;
    std::vector<float> expected;
    for (const NamedShape& t : small.tensors) {
      int64_t n = 1;
      std::string shape;
      for (int64_t size : t.shape) {
        n *= size;
        shape += (shape.empty() ? "" : ",") + std::to_string(size);
      }
      for (int64_t i = 0; i < n; ++i) {
        const auto k = static_cast<size_t>(i) % halves.size();
        const uint16_t bits = half ? halves[k] : static_cast<uint16_t>(k % 2 ? 0xc000 : 0x3f80);
        data.append(reinterpret_cast<const char*>(&bits), sizeof bits);
        expected.push_back(half ? values[k] : k % 2 ? -2.0f : 1.0f);
      }
      const uint64_t end = at + static_cast<uint64_t>(n) * 2;
      header += (at > 0 ? ",\"" : "\"") + t.name + R"(":{"dtype":")" + (half ? "F16" : "BF16") +
                R"(","shape":[)" + shape + R"(],"data_offsets":[)" + std::to_string(at) + "," +
                std::to_string(end) + "]}";
      at = end;
    }
    const std::string name = half ? "half" : "bf16";
    REQUIRE(import_weights(folder(dir / name, header + "}", data), dir / (name + "-run"),
                           std::nullopt, {}));
    auto checkpoint = find_checkpoint(dir / (name + "-run"), std::nullopt);
    REQUIRE(export_weights(*checkpoint, dir / (name + "-out"), false, {}));
    const std::string out = read_file(dir / (name + "-out/model.safetensors"));
    CHECK(std::memcmp(out.data() + out.size() - expected.size() * 4, expected.data(),
                      expected.size() * 4) == 0);
  }
}

TEST_CASE("import refuses what is another model, and makes no run of it") {
  Temporary dir;
  const std::string run = dir / "run";
  const Small good;
  auto said = [&](const Small& small, const std::string& config = R"({"n_head": 2})") {
    return import_error(small.at(dir / "in", config), run);
  };
  Small other = good;
  other.tensors[0].name = "transformer.wtf.weight";
  CHECK(said(other).find("wte.weight") != std::string::npos);
  other = good;
  other.tensors[3].name = "transformer.h.0.ln_9.bias";
  CHECK(said(other).find("ln_1.bias") != std::string::npos);
  other = good;
  other.tensors.push_back({"transformer.more", {0}});
  CHECK(said(other).find("transformer.more") != std::string::npos);
  other = good;
  std::swap(other.tensors[4].shape[0], other.tensors[4].shape[1]);
  CHECK(said(other).find("another shape") != std::string::npos);
  other = good;
  other.tensors[0].shape = {128, 16};
  CHECK(said(other) != "");
  other = good;
  other.tensors.push_back({"lm_head.weight", {256, 8}});
  other.data += std::string(256 * 8 * 4, '\1');
  CHECK(said(other).find("tied") != std::string::npos);

  for (const char* config :
       {"", "[]", "{}", R"({"n_head": 3})", R"({"n_head": -1})", R"({"n_head": "2"})",
        R"({"n_head": 1e9})", R"({"n_head": 0})", R"({"n_head": 2, "n_layer": 2})",
        R"({"n_head": 2, "n_inner": 8})", R"({"n_head": 2, "model_type": "llama"})",
        R"({"n_head": 2, "activation_function": "relu"})",
        R"({"n_head": 2, "layer_norm_epsilon": 1e-6})",
        R"({"n_head": 2, "tie_word_embeddings": false})",
        R"({"n_head": 2, "scale_attn_by_inverse_layer_idx": true})"}) {
    CAPTURE(config);
    CHECK(said(good, config) != "");
  }
  CHECK(import_error(dir / "none", run) != "");
  CHECK(import_error("/dev/zero", run).find("regular") != std::string::npos);
  good.at(dir / "in");
  CHECK(import_error(dir / "in", run, 4).find("--heads") != std::string::npos);
  std::filesystem::remove(dir / "in/config.json");
  CHECK(import_error(dir / "in", run).find("--heads") != std::string::npos);
  const std::string file = dir / "in/model.safetensors";
  const std::string whole = read_file(file);
  for (const size_t n : {size_t{0}, size_t{7}, size_t{8}, size_t{100}, whole.size() - 1}) {
    write_file(file, whole.substr(0, n));
    CHECK(import_error(file, run, 2) != "");
  }
  write_file(file, whole);
  CHECK(import_error(file, run, 2) == "");
}

TEST_CASE("the vocabulary must be the engine's") {
  Temporary dir;
  Small gpt2;
  gpt2.tensors[0].shape[0] = 300;
  gpt2.data.insert(0, std::string(44 * 8 * 4, '\0'));
  CHECK(import_error(gpt2.at(dir / "in"), dir / "run").find("vocabulary of 300") !=
        std::string::npos);
}

TEST_CASE("a head that is the embedding, masks and missing prefixes are taken") {
  Temporary dir;
  Small small;
  for (NamedShape& t : small.tensors) t.name.erase(0, std::string("transformer.").size());
  small.tensors.push_back({"lm_head.weight", {256, 8}});
  small.data += small.data.substr(0, 256 * 8 * 4);
  small.tensors.push_back({"h.0.attn.bias", {1, 1, 4, 4}});
  small.data += std::string(16 * 4, '\1');
  CHECK(import_error(small.at(dir / "in"), dir / "run") == "");
}

TEST_CASE("an export is whole or not there, and never takes another's place unasked") {
  Temporary dir;
  const Small small;
  REQUIRE(import_weights(small.at(dir / "in"), dir / "run", std::nullopt, {}));
  auto checkpoint = find_checkpoint(dir / "run", std::nullopt);
  REQUIRE(checkpoint);
  std::filesystem::create_directory(dir / "taken");
  write_file(dir / "taken/config.json", "mine");
  write_file(dir / "taken/tokenizer.json", "mine");
  auto refused = export_weights(*checkpoint, dir / "taken", false, {});
  REQUIRE(!refused);
  CHECK(refused.error().exit == exit_code::usage);
  CHECK(read_file(dir / "taken/config.json") == "mine");
  std::filesystem::create_directory_symlink(dir / "taken", dir / "link");
  CHECK(!export_weights(*checkpoint, dir / "link", true, {}));
  CHECK(!export_weights(*checkpoint, dir / "no/such/place", false, {}));
  REQUIRE(export_weights(*checkpoint, dir / "taken", true, {}));
  CHECK(entries(dir / "taken") ==
        std::vector<std::string>{"config.json", "model.safetensors", "tokenizer.json"});

  // Damage that is found halfway leaves nothing.
  const std::string file = shard(dir / "run", 0, 0);
  std::string bad = read_file(file);
  bad[bad.size() - 5] = static_cast<char>(bad[bad.size() - 5] ^ 1);
  write_file(file, bad);
  const auto before = entries(dir.path());
  auto failed = export_weights(*checkpoint, dir / "out", false, {});
  REQUIRE(!failed);
  CHECK(failed.error().exit == exit_code::hopeless);
  CHECK(!export_weights(*checkpoint, dir / "taken", true, {}));
  CHECK(entries(dir.path()) == before);
  CHECK(entries(dir / "taken").size() == 3);
}

TEST_CASE("an export for which there is no room leaves nothing") {
  Temporary dir;
  const Small small;
  REQUIRE(import_weights(small.at(dir / "in"), dir / "run", std::nullopt, {}));
  auto checkpoint = find_checkpoint(dir / "run", std::nullopt);
  const SmallDisk disk(dir / "disk", "size=8k");
  if (!disk) return;
  CHECK(!export_weights(*checkpoint, disk / "out", false, {}));
  CHECK(entries(dir / "disk").empty());
}

TEST_CASE("differences are counted by bits and measured by value") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const float a[] = {1.0f, 0.0f, nan, 4.0f, nan, -1.0f},
              b[] = {1.0f, -0.0f, nan, 3.0f, 1.0f, -1.0f};
  Difference d = difference(a, b, 4);
  CHECK(d.elements == 4);
  CHECK(d.differing == 2);
  CHECK(d.largest == 1.0);
  CHECK(d.relative == 0.25);
  d.add(difference(a + 4, b + 4, 2));
  CHECK(d.elements == 6);
  CHECK(d.differing == 3);
  CHECK(std::isinf(d.largest));
}

TEST_CASE("checkpoints of different steps and worlds are compared") {
  Temporary dir;
  REQUIRE(save(dir / "one", 4, 1));
  REQUIRE(save(dir / "three", 4, 3));
  REQUIRE(save(dir / "one", 5, 1));
  auto open = [](const std::string& path) { return *Directory::open(path); };
  const Directory one = open(step_path(dir / "one", 4)), three = open(step_path(dir / "three", 4)),
                  later = open(step_path(dir / "one", 5));
  auto same = compare(one, three, "", {});
  REQUIRE(same);
  CHECK(same->equal());
  CHECK(same->slots.size() == 3);
  auto moved = compare(one, later, "m", {});
  REQUIRE(moved);
  CHECK(!moved->equal());
  CHECK(moved->differing.size() == known_sizes().size());
  CHECK(moved->slots.at("m").differing == moved->slots.at("m").elements);
  CHECK(moved->slots.at("m").largest == doctest::Approx(1e6).epsilon(0.01));  // known_value()
  CHECK(moved->tensors.at("m") == known_sizes().size());
  CHECK(moved->remarks.front() == "step: 4 and 5");
  auto mistyped = compare(one, later, "wieght", {});
  REQUIRE(!mistyped);
  CHECK(mistyped.error().exit == exit_code::usage);
  write_file(shard(dir / "three", 4, 1), "x");
  CHECK(!compare(one, three, "", {}));
}
