// Checkpoints of known content, for tests: what a rank of some world holds at a
// step, saved and compared.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>
#include <vector>

#include "ckpt/ckpt.h"
#include "ckpt/manifest.h"

namespace trainlaunch {

// Of odd sizes, so that pieces end between tiles and shards between pages.
inline TensorSizes known_sizes(int64_t scale = 1) {
  return {{"wte", 5000 * scale}, {"blocks.0.bias", 7}, {"blocks.0.gain", 33}, {"ln", 1024}};
}

inline float known_value(const std::string& tensor, const std::string& slot, int64_t i,
                         uint64_t step) {
  return static_cast<float>(tensor.size() * 1000 + static_cast<size_t>(slot[0])) +
         static_cast<float>(i % 100000) * 0.25f + static_cast<float>(step) * 1e6f;
}

inline State known_state(uint64_t step) {
  return {step,     step * 32,
          step - 1, {step % 3, 1, 9, 7, {0.1, 1e-9}, {}},
          "abc",    {{"model.width", "64"}, {"data.path", "caf\xe9"}}};
}

// The part of every tensor and slot that one of `size` ranks holds, cut at multiples of 16.
struct Holding {
  Holding(int rank, int size, const TensorSizes& sizes = known_sizes()) {
    for (const auto& [tensor, n] : sizes) {
      for (const char* slot : {"weight", "m", "v"}) {
        const int64_t cuts = (n + 15) / 16;
        const int64_t from = std::min(n, cuts * rank / size * 16),
                      to = std::min(n, cuts * (rank + 1) / size * 16);
        memory.emplace_back(static_cast<size_t>(to - from));
        pieces.push_back(
            {tensor, slot, from, to - from, View(memory.back().data(), DType::f32, {to - from})});
      }
    }
  }
  void fill(uint64_t step) {
    for (const Piece& p : pieces)
      for (int64_t i = 0; i < p.length; ++i)
        p.mem.as<float>()[i] = known_value(p.tensor, p.slot, p.offset + i, step);
  }
  int64_t wrong(uint64_t step) const {
    int64_t n = 0;
    for (const Piece& p : pieces)
      for (int64_t i = 0; i < p.length; ++i)
        n += p.mem.as<float>()[i] != known_value(p.tensor, p.slot, p.offset + i, step);
    return n;
  }
  std::deque<std::vector<float>> memory;
  std::vector<Piece> pieces;
};

struct Host {
  std::unique_ptr<Device> device = make_host_device();
  std::unique_ptr<Stream> stream = std::move(*device->stream());
};

// Saves and waits.
inline Outcome save_now(Writer& writer, std::span<const Piece> pieces, uint64_t step,
                        const TensorSizes& sizes = known_sizes()) {
  Host host;
  writer.save(pieces, sizes, known_state(step), {}, *host.device, *host.stream);
  writer.wait();
  auto outcome = writer.poll();
  if (outcome) return std::move(*outcome);
  Outcome none;
  none.status = fail("no outcome");
  return none;
}

inline Status save_known(Writer& writer, const World& world, uint64_t step) {
  Holding mine(world.rank, world.size);
  mine.fill(step);
  return save_now(writer, mine.pieces, step).status;
}

// Agrees on a checkpoint of the shared directory alone.
inline Result<Reader::Agreed> agree(const std::string& run, std::optional<uint64_t> step,
                                    Control& control) {
  const Source shared{Level::shared, run};
  return Reader::agree({&shared, 1}, step, control);
}

// What is wrong with what this rank of a world reads; empty when it is all of `step`.
inline std::string compare_known(Reader& reader, const World& world, uint64_t step,
                                 const TensorSizes& sizes = known_sizes()) {
  Host host;
  const State& s = reader.state();
  if (s.step != step || s.samples != step * 32 || s.updates != step - 1 ||
      s.guard != known_state(step).guard || s.data_digest != "abc")
    return "another state";
  Holding mine(world.rank, world.size, sizes), all(0, 1, sizes);
  for (Holding* h : {&mine, &all}) {
    auto read = reader.read(h->pieces, *host.device, *host.stream);
    if (!read) return read.error().what;
    if (h->wrong(step) != 0) return "wrong values";
  }
  return "";
}

inline std::vector<std::string> entries(const std::string& dir) {
  std::vector<std::string> names;
  for (auto& e : std::filesystem::directory_iterator(dir)) names.push_back(e.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// What does not belong to a run directory in which nobody saves.
inline std::vector<std::string> litter(const std::string& run) {
  std::vector<std::string> names = entries(run);
  std::erase_if(names, [](const std::string& n) {
    return n.starts_with("step-") || n.starts_with("run.") || n.starts_with(".attempt-");
  });
  return names;
}

}  // namespace trainlaunch
