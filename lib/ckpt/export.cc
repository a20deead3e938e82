#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "ckpt/architecture.h"
#include "ckpt/exchange.h"
#include "ckpt/safetensors.h"

namespace trainlaunch {

namespace {

using nlohmann::json;

// What transformers' GPT2Config needs to compute what we do; dropout is not part of it.
std::string config_text(const GptConfig& c) {
  const json config{{"architectures", {"GPT2LMHeadModel"}},
                    {"model_type", "gpt2"},
                    {"activation_function", "gelu_new"},
                    {"layer_norm_epsilon", 1e-5},
                    {"n_layer", c.layers},
                    {"n_head", c.heads},
                    {"n_embd", c.width},
                    {"n_inner", nullptr},
                    {"n_positions", c.context},
                    {"n_ctx", c.context},
                    {"vocab_size", c.vocab},
                    {"scale_attn_weights", true},
                    {"tie_word_embeddings", true},
                    {"attn_pdrop", 0.0},
                    {"embd_pdrop", 0.0},
                    {"resid_pdrop", 0.0},
                    {"bos_token_id", nullptr},
                    {"eos_token_id", nullptr},
                    {"torch_dtype", "float32"}};
  return config.dump(2) + "\n";
}

// The model of a checkpoint, when its tensors are this model's and no others.
Result<std::unique_ptr<Model>> whole_model(const Reader& checkpoint, const GptConfig& config) {
  auto model = model_of(checkpoint.tensors(), config);
  if (!model) return fail(checkpoint.path() + ": " + model.error().what);
  TensorSizes expected;
  for (const ParamSpec& p : (*model)->params()) expected[p.name] = p.size();
  if (expected != checkpoint.tensors())
    return fail(checkpoint.path() + " has other tensors than its configuration says");
  return model;
}

class Export {
 public:
  Export(Reader& reader, std::span<const ParamSpec> params, std::string config,
         const Progress& progress)
      : reader_(reader), params_(params), config_(std::move(config)), progress_(progress) {
    std::vector<NamedShape> tensors;
    for (const ParamSpec& p : params_) tensors.push_back({p.hf, p.shape});
    head_ = safetensors_head(tensors, {{"format", "pt"}});
    bytes_ = head_.size();
    for (const ParamSpec& p : params_) bytes_ += static_cast<uint64_t>(p.size()) * sizeof(float);
  }

  uint64_t bytes() const { return bytes_; }

  // Both files, under these names, synced.
  Status write(const Directory& dir, const std::string& weights, const std::string& config) {
    if (auto s = dir.write_new(config, config_); !s) return s;
    if (auto s = write_weights(dir, weights); !s) return s;
    return dir.sync();
  }

 private:
  Status write_weights(const Directory& dir, const std::string& name) {
    const std::string what = "cannot write " + dir.path_of(name);
    auto file = dir.create(name);
    if (!file) return forward(file);
    if (auto s = preallocate(file->get(), bytes_, what); !s) return s;
    if (auto s = write_fully(file->get(), head_.data(), head_.size(), what); !s) return s;
    const auto device = make_host_device();
    auto stream = device->stream();
    if (!stream) return forward(stream);
    uint64_t done = head_.size();
    std::vector<float> values;
    for (const ParamSpec& p : params_) {
      values.resize(static_cast<size_t>(p.size()));
      const Piece piece{p.name, "weight", 0, p.size(), View(values.data(), DType::f32, {p.size()})};
      if (auto s = reader_.read({&piece, 1}, *device, **stream); !s)
        return fail(s.error().what, exit_code::hopeless);
      const size_t size = values.size() * sizeof(float);
      if (auto s = write_fully(file->get(), values.data(), size, what); !s) return s;
      done += size;
      if (progress_) progress_(done, bytes_);
    }
    if (fsync(file->get()) != 0) return fail_errno(what);
    return file->close(what);
  }

  Reader& reader_;
  const std::span<const ParamSpec> params_;
  const std::string config_;
  const Progress& progress_;
  std::string head_;
  uint64_t bytes_ = 0;
};

// A directory that appears as a whole.
Status write_fresh(Export& files, const Directory& parent, const std::string& name) {
  const std::string temporary = "." + name + "." + random_hex() + ".tmp";
  std::string present = temporary;
  if (auto s = parent.make(temporary); !s) return s;
  auto done = [&]() -> Status {
    auto inside = parent.enter(temporary);
    if (!inside) return forward(inside);
    if (auto s = files.write(*inside, weights_name, config_name); !s) return s;
    bool taken = false;
    auto renamed = parent.rename_new(temporary, name, &taken);
    if (taken) return fail(parent.path_of(name) + " exists already", exit_code::usage);
    if (!renamed) return renamed;
    present = name;
    return parent.sync();
  }();
  if (!done) (void)parent.remove(present, config_name);
  return done;
}

Status write_into(Export& files, const Directory& dir) {
  const std::string end = "." + random_hex() + ".tmp",
                    weights = "." + std::string(weights_name) + end,
                    config = "." + std::string(config_name) + end;
  auto done = [&]() -> Status {
    if (auto s = files.write(dir, weights, config); !s) return s;
    if (auto s = dir.rename_over(config, config_name); !s) return s;
    return dir.rename_over(weights, weights_name);
  }();
  if (done) return dir.sync();
  for (const std::string& name : {weights, config}) (void)dir.remove_file(name);
  return done;
}

}  // namespace

Result<uint64_t> export_weights(const Directory& checkpoint, const std::string& output, bool force,
                                const Progress& progress) {
  auto reader = Reader::open_at(checkpoint.path());
  if (!reader) return fail(reader.error().what, exit_code::hopeless);
  auto config = architecture_of((*reader)->state());
  if (!config) return fail(checkpoint.path() + ": " + config.error().what);
  auto model = whole_model(**reader, *config);
  if (!model) return forward(model);
  Export files(**reader, (*model)->params(), config_text(*config), progress);

  std::error_code unknown;
  std::filesystem::path path = std::filesystem::absolute(output, unknown).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string name = path.filename().string();
  // Who names a file through links means where they lead; the last part itself must be no link.
  const std::filesystem::path parent_path = std::filesystem::canonical(path.parent_path(), unknown);
  if (unknown || name.empty())
    return fail("--output: there is no directory " + path.parent_path().string(), exit_code::usage);
  auto parent = Directory::open(parent_path.string());
  if (!parent) return forward(parent);
  Status done;
  if (!parent->has(name)) {
    done = write_fresh(files, *parent, name);
  } else if (force) {
    auto dir = Directory::open(parent->path_of(name));
    done = dir ? write_into(files, *dir) : forward(dir);
  } else {
    done = fail(output + " exists already; --force replaces " + weights_name + " and " +
                    config_name + " in it",
                exit_code::usage);
  }
  if (!done) return forward(done);
  return files.bytes();
}

}  // namespace trainlaunch
