// A directory that checkpoints go to, and how all ranks save one there together.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/ckpt.h"
#include "ckpt/directory.h"
#include "ckpt/manifest.h"
#include "ckpt/ownership.h"
#include "ckpt/snapshot.h"

namespace trainlaunch {

// What is saved, on one rank.
struct SaveJob {
  const Snapshot* snapshot = nullptr;
  Status taken;  // what became of the copy so far
  TensorSizes tensors;
  State state;
  bool hurry = false;
};

class Place {
 public:
  // Collective. An error is the same on all ranks.
  static Result<std::unique_ptr<Place>> open(const std::string& path, const SaveOptions& options,
                                             Control& control);

  const std::string& path() const { return dir_.path(); }
  const std::vector<std::string>& warnings() const { return warnings_; }  // of opening, on rank 0

  // Collective, from one thread at a time. `decided` is called once, when it is known how the save
  // has ended; what follows is care for what is there. What went wrong in that: one line each, on
  // rank 0.
  using Decided = std::function<void(Outcome)>;
  std::vector<std::string> save(const SaveJob& job, const Decided& decided);
  // On rank 0; elsewhere nothing.
  Result<std::vector<std::string>> set_aside_after(uint64_t step);
  Status mark_verified(uint64_t step, const std::string& digest) const;

 private:
  Place(Directory dir, const SaveOptions& options, Control& control)
      : dir_(std::move(dir)), options_(options), control_(control) {}

  struct Part {
    ShardFile file;
    std::vector<Run> runs;
  };
  static std::string encode(const Result<Part>& part);
  static Result<Part> decode(const std::string& text, int rank);

  const World& world() const { return control_.world(); }
  bool leads() const { return world().rank == 0; }
  std::string called(int rank) const;
  Result<std::vector<std::string>> gather(const char* name, const std::string& mine);
  Status all_well(const char* name, const Status& mine);

  Status attempt(const SaveJob& job, Outcome& outcome, Manifest& manifest);
  Result<uint64_t> total_bytes(const SaveJob& job);
  Result<std::string> make_temporary(uint64_t step, uint64_t bytes);
  Status prepare(const std::string& temporary, uint64_t bytes) const;
  Result<Part> write_in_turn(const std::string& temporary, const SaveJob& job);
  Result<Part> write(const std::string& temporary, const SaveJob& job) const;
  Result<Manifest> assemble(const SaveJob& job, const std::vector<std::string>& parts) const;
  Status commit(const std::string& temporary, Manifest& manifest);

  Status read_back(const Manifest& manifest) const;
  Status retain();
  Result<std::string> set_aside(const std::string& name, const std::string& suffix) const;

  Directory dir_;
  const SaveOptions options_;
  Control& control_;
  Ownership ownership_;  // of rank 0
  std::vector<std::string> warnings_;
};

}  // namespace trainlaunch
