// Weights to and from other programs: a folder with model.safetensors and config.json, as Hugging
// Face's GPT2LMHeadModel reads and writes it. ParamSpec::hf has the names. lm_head.weight, which is
// tied to the embedding, is left out, as there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/directory.h"
#include "ckpt/verify.h"

namespace trainlaunch {

inline constexpr const char* weights_name = "model.safetensors";
inline constexpr const char* config_name = "config.json";

// Writes the weights of a checkpoint, F32, into the new directory `output`, which has its name only
// when all of it is on disk; after an error there is nothing. `force`: an existing directory gets
// the two files, each in one step, config.json first. Returns the bytes written.
Result<uint64_t> export_weights(const Directory& checkpoint, const std::string& output, bool force,
                                const Progress& progress);

// Makes `run`, a run directory without checkpoints, begin with these weights: a checkpoint of step
// 0 with fresh optimizer state. `input` is such a folder, or a safetensors file that has its
// config.json beside it; without one `heads` must be given. F32, F16 and BF16 are taken. Everything
// that would make the model compute something else is refused (usage).
struct Imported {
  std::string path;                   // of the checkpoint
  std::vector<std::string> warnings;  // what went wrong after it was durable: a line each
};
Result<Imported> import_weights(const std::string& input, const std::string& run,
                                std::optional<uint64_t> heads, const Progress& progress);

}  // namespace trainlaunch
