#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "ckpt/architecture.h"
#include "ckpt/exchange.h"
#include "ckpt/manifest.h"
#include "ckpt/safetensors.h"
#include "data/data.h"
#include "ops/convert.h"

namespace trainlaunch {

namespace {

using nlohmann::json;

constexpr uint64_t config_limit = uint64_t{1} << 20;  // bytes; more is not read
constexpr std::string_view hf_prefix = "transformer.";
constexpr const char* head_name = "lm_head.weight";

tl::unexpected<Error> wrong(std::string what) { return fail(std::move(what), exit_code::usage); }

// Links are followed: caches of models are made of them.
Result<Directory::Opened> open_input(const std::string& path) {
  Directory::Opened file{Fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC))};
  if (!file.fd) return fail_errno("cannot open " + path, exit_code::usage);
  struct stat st;
  if (fstat(file.fd.get(), &st) != 0) return fail_errno("cannot open " + path);
  if (!S_ISREG(st.st_mode)) return wrong(path + " is not a regular file");
  file.bytes = static_cast<uint64_t>(st.st_size);
  return file;
}

Result<std::string> read_piece(const Directory::Opened& file, uint64_t offset, uint64_t bytes,
                               const std::string& path) {
  std::string text(bytes, '\0');
  if (auto s = read_fully(file.fd.get(), text.data(), text.size(), offset, "cannot read " + path);
      !s)
    return forward(s);
  return text;
}

// The safetensors file, with its tensors by our model's idea of their names.
struct Input {
  std::string path;
  Directory::Opened file;
  std::map<std::string, StoredTensor> tensors;
};

// GPT2Model's files lack the prefix that GPT2LMHeadModel's have.
std::string full_name(const std::string& name) {
  return name == head_name || name.starts_with(hf_prefix) ? name : std::string(hf_prefix) + name;
}

// Constants that older files keep: the causal mask, and what is put where it hides something.
bool is_mask(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

Result<Input> open_weights(const std::string& path) {
  auto file = open_input(path);
  if (!file) return forward(file);
  auto first = read_piece(*file, 0, std::min<uint64_t>(file->bytes, 8), path);
  if (!first) return forward(first);
  auto length = safetensors_header_length(*first, file->bytes, path);
  if (!length) return wrong(length.error().what);
  auto header = read_piece(*file, 8, *length, path);
  if (!header) return forward(header);
  auto tensors = parse_safetensors(*header, file->bytes, path);
  if (!tensors) return wrong(tensors.error().what);
  Input input{path, std::move(*file), {}};
  for (StoredTensor& t : *tensors) {
    const std::string name = full_name(t.name);
    if (is_mask(name)) continue;
    if (!input.tensors.emplace(name, std::move(t)).second)
      return wrong(path + " has " + name + " with and without its prefix");
  }
  return input;
}

Result<json> read_config(const std::string& path) {
  auto file = open_input(path);
  if (!file) return forward(file);
  if (file->bytes > config_limit) return wrong(path + " is too large");
  auto text = read_piece(*file, 0, file->bytes, path);
  if (!text) return forward(text);
  json j = json::parse(*text, nullptr, false);
  if (!j.is_object()) return wrong(path + " is no JSON object");
  return j;
}

// Whatever is said and would compute something else.
Status check_config(const json& j, const std::string& path) {
  const std::vector<std::pair<const char*, std::vector<json>>> accepted{
      {"model_type", {"gpt2"}},        {"activation_function", {"gelu_new", "gelu_pytorch_tanh"}},
      {"layer_norm_epsilon", {1e-5}},  {"tie_word_embeddings", {true}},
      {"scale_attn_weights", {true}},  {"scale_attn_by_inverse_layer_idx", {false}},
      {"add_cross_attention", {false}}};
  for (const auto& [key, values] : accepted) {
    const auto it = j.find(key);
    if (it == j.end() || std::find(values.begin(), values.end(), *it) != values.end()) continue;
    return wrong(path + ": " + key + " must be " + values.front().dump() +
                 ", as the engine has it");
  }
  return {};
}

// "The tensor of this name must have the shape [rows, columns]", and what it says.
Result<std::pair<int64_t, int64_t>> matrix(const Input& input, const std::string& name) {
  const auto it = input.tensors.find(std::string(hf_prefix) + name);
  if (it == input.tensors.end()) return wrong(input.path + " is no GPT-2: it has no " + name);
  const auto& shape = it->second.shape;
  if (shape.size() != 2) return wrong(input.path + ": " + name + " is no matrix");
  return std::pair(shape[0], shape[1]);
}

int64_t count_layers(const Input& input) {
  std::set<std::string> layers;
  const std::string prefix = std::string(hf_prefix) + "h.";
  for (const auto& [name, tensor] : input.tensors)
    if (name.starts_with(prefix))
      layers.insert(name.substr(prefix.size(), name.find('.', prefix.size()) - prefix.size()));
  return static_cast<int64_t>(layers.size());
}

// The file's shapes say what the model is, but for the heads; what the configuration says besides
// must agree.
Result<GptConfig> architecture_of(const Input& input, const json* config, const std::string& path,
                                  std::optional<uint64_t> heads) {
  auto tokens = matrix(input, "wte.weight");
  if (!tokens) return forward(tokens);
  auto positions = matrix(input, "wpe.weight");
  if (!positions) return forward(positions);
  constexpr uint64_t most = 1000;  // as model.heads and model.layers
  GptConfig c{count_layers(input), static_cast<int64_t>(std::min(heads.value_or(0), most + 1)),
              tokens->second, positions->first, tokens->first};
  if (config) {
    const std::pair<const char*, int64_t> said[] = {{"n_layer", c.layers},
                                                    {"n_embd", c.width},
                                                    {"n_inner", 4 * c.width},
                                                    {"n_positions", c.context},
                                                    {"vocab_size", c.vocab}};
    for (const auto& [key, value] : said) {
      const json stated = config->value(key, json());
      if (!stated.is_null() && stated != json(value))
        return wrong(path + ": " + key + " is " + stated.dump() + ", but the weights have " +
                     std::to_string(value));
    }
    const json stated = config->value("n_head", json());
    if (!stated.is_number_unsigned()) return wrong(path + ": n_head is missing or no number");
    const uint64_t n = std::min(stated.get<uint64_t>(), most + 1);
    if (heads && *heads != n)
      return wrong("--heads is " + std::to_string(*heads) + ", but " + path + " has n_head " +
                   stated.dump());
    c.heads = static_cast<int64_t>(n);
  } else if (!heads) {
    return wrong("there is no " + path + ": give the number of attention heads with --heads");
  }
  if (c.vocab != Text::vocab)
    return wrong(input.path + " has a vocabulary of " + std::to_string(c.vocab) +
                 ": the engine's texts are bytes, of which there are " +
                 std::to_string(Text::vocab));
  constexpr int64_t widest = int64_t{1} << 20;  // as model.width and model.context
  if (c.width < 1 || c.context < 1 || c.width > widest || c.context > widest)
    return wrong(input.path + ": width and context must be from 1 to " + std::to_string(widest));
  if (c.layers < 1 || c.heads < 1 || c.layers > int64_t{most} || c.heads > int64_t{most})
    return wrong(input.path + ": there must be from 1 to 1000 layers and heads");
  return c;
}

// Every parameter is there in its shape and a type that we read, and nothing else is.
Status check_tensors(const Input& input, std::span<const ParamSpec> params) {
  std::set<std::string> known{head_name};
  for (const ParamSpec& p : params) {
    known.insert(p.hf);
    const auto it = input.tensors.find(p.hf);
    if (it == input.tensors.end()) return wrong(input.path + " lacks " + p.hf);
    if (it->second.shape != p.shape) return wrong(input.path + ": " + p.hf + " has another shape");
  }
  for (const auto& [name, t] : input.tensors) {
    if (!known.contains(name))
      return wrong(input.path + " has " + name + ", which the engine's GPT-2 does not have");
    if (t.dtype != "F32" && t.dtype != "F16" && t.dtype != "BF16")
      return wrong(input.path + ": " + name + " is " + t.dtype + ", not F32, F16 or BF16");
  }
  const auto head = input.tensors.find(head_name);
  if (head != input.tensors.end() && head->second.shape != params.front().shape)
    return wrong(input.path + ": " + head_name + " has another shape than the embedding");
  return {};
}

// IEEE 754 binary16.
float float_of_half(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16, exponent = (h >> 10) & 0x1fu,
                 fraction = h & 0x3ffu;
  if (exponent == 0) {  // zero and subnormal numbers: multiples of 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 0x1f ? 0xffu : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

// A tensor's values in f32; `to` has room for them.
Status read_values(const Input& input, const StoredTensor& t, float* to) {
  const auto n = static_cast<size_t>(t.elements());
  const std::string what = "cannot read " + input.path;
  if (t.dtype == "F32")
    return read_fully(input.file.fd.get(), to, n * sizeof(float), t.begin, what);
  constexpr size_t at_once = size_t{1} << 20;
  std::vector<uint16_t> narrow(std::min(n, at_once));
  const bool half = t.dtype == "F16";
  for (size_t at = 0; at < n; at += at_once) {
    const size_t count = std::min(at_once, n - at);
    if (auto s = read_fully(input.file.fd.get(), narrow.data(), count * sizeof(uint16_t),
                            t.begin + at * sizeof(uint16_t), what);
        !s)
      return s;
    std::transform(narrow.begin(), narrow.begin() + static_cast<std::ptrdiff_t>(count), to + at,
                   [half](uint16_t x) { return half ? float_of_half(x) : float_of(x); });
  }
  return {};
}

// The state that a run begins with: the weights, and Adam's moments, all zero, which share memory.
class Beginning {
 public:
  Status read(const Input& input, std::span<const ParamSpec> params, const Progress& progress) {
    int64_t all = 0, largest = 0, done = 0;
    for (const ParamSpec& p : params) {
      all += p.size();
      largest = std::max(largest, p.size());
    }
    auto block = device_->allocate(static_cast<size_t>(all + largest) * sizeof(float));
    if (!block) return forward(block);
    block_ = std::move(*block);
    auto* at = static_cast<float*>(block_->data());
    float* const zeros = at + all;
    std::memset(zeros, 0, static_cast<size_t>(largest) * sizeof(float));
    for (const ParamSpec& p : params) {
      if (auto s = read_values(input, input.tensors.at(p.hf), at); !s) return s;
      sizes_[p.name] = p.size();
      pieces_.push_back({p.name, "weight", 0, p.size(), View(at, DType::f32, {p.size()})});
      for (const char* slot : {"m", "v"})
        pieces_.push_back({p.name, slot, 0, p.size(), View(zeros, DType::f32, {p.size()})});
      at += p.size();
      done += p.size();
      if (progress) progress(static_cast<uint64_t>(done), static_cast<uint64_t>(all));
    }
    return check_head(input);
  }

  Result<Imported> save(const std::string& run, const GptConfig& config) {
    auto present = list_checkpoints(run);
    if (!present) return forward(present);
    if (!present->empty())
      return wrong(run + " has checkpoints already; import into a new run directory");
    const auto control = make_single_control();
    auto writer = Writer::open(run, {}, *control);
    if (!writer) return forward(writer);
    auto stream = device_->stream();
    if (!stream) return forward(stream);
    State state;
    state.config = settings_of(config);
    (*writer)->save(pieces_, sizes_, state, {}, *device_, **stream);
    (*writer)->wait();
    const auto outcome = (*writer)->poll();
    if (!outcome) return fail("the checkpoint's outcome is unknown");
    if (!outcome->status) return tl::unexpected<Error>(outcome->status.error());
    return Imported{outcome->path, (*writer)->warnings()};
  }

 private:
  // A head of its own is another model.
  Status check_head(const Input& input) const {
    const auto head = input.tensors.find(head_name);
    if (head == input.tensors.end()) return {};
    std::vector<float> values(static_cast<size_t>(head->second.elements()));
    if (auto s = read_values(input, head->second, values.data()); !s) return s;
    const size_t bytes = values.size() * sizeof(float);
    if (std::memcmp(values.data(), pieces_.front().mem.p, bytes) == 0) return {};
    return wrong(input.path + ": " + head_name +
                 " is not the embedding: the engine's GPT-2 has them tied");
  }

  std::unique_ptr<Device> device_ = make_host_device();
  std::unique_ptr<Block> block_;
  std::vector<Piece> pieces_;
  TensorSizes sizes_;
};

}  // namespace

Result<Imported> import_weights(const std::string& input_path, const std::string& run,
                                std::optional<uint64_t> heads, const Progress& progress) {
  std::error_code unknown;
  const std::filesystem::path given(input_path);
  const bool folder = std::filesystem::is_directory(given, unknown);
  const std::filesystem::path weights = folder ? given / weights_name : given,
                              config_path = weights.parent_path() / config_name;
  auto input = open_weights(weights.string());
  if (!input) return forward(input);
  std::optional<json> config;
  if (std::filesystem::exists(config_path, unknown)) {
    auto read = read_config(config_path.string());
    if (!read) return forward(read);
    config = std::move(*read);
    if (auto s = check_config(*config, config_path.string()); !s) return forward(s);
  }
  auto architecture =
      architecture_of(*input, config ? &*config : nullptr, config_path.string(), heads);
  if (!architecture) return forward(architecture);
  auto model = make_gpt(*architecture);
  if (!model) return wrong(input_path + ": " + model.error().what);
  if (auto s = check_tensors(*input, (*model)->params()); !s) return forward(s);
  Beginning beginning;
  if (auto s = beginning.read(*input, (*model)->params(), progress); !s) return forward(s);
  return beginning.save(run, *architecture);
}

}  // namespace trainlaunch
