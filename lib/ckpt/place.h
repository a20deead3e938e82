// A directory that checkpoints go to, and how all ranks save one there together.
#pragma once

#include <cstdint>
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
  Writer::How how;
};

class Place {
 public:
  // Collective. An error is the same on all ranks.
  static Result<std::unique_ptr<Place>> open(const Source& where, const SaveOptions& options,
                                             Control& control);

  Source source() const { return {level_, dir_.path()}; }
  const Directory& dir() const { return dir_; }
  const std::vector<std::string>& warnings() const { return warnings_; }  // of opening

  // Collective, from one thread at a time. `decided` is called once, when it is known how the save
  // has ended; what follows is care for what is there. What went wrong in that: one line each.
  using Decided = std::function<void(Outcome)>;
  std::vector<std::string> save(const SaveJob& job, const Decided& decided);
  // The outcome of a save that was left by an exception, in the midst of it.
  Outcome thrown(const SaveJob& job, const std::string& what) const;
  // As Writer::go_on_from, on the ranks that lead; elsewhere nothing.
  Result<std::vector<std::string>> go_on_from(uint64_t step, std::span<const PassedOver> bad);
  Status mark_verified(uint64_t step, const std::string& digest) const;

 private:
  Place(Level level, Directory dir, const SaveOptions& options, Control& control)
      : level_(level), dir_(std::move(dir)), options_(options), control_(control) {}

  struct Part {
    ShardFile file;
    std::vector<Run> runs;
  };
  static std::string encode(const Result<Part>& part);
  static Result<std::string> encode_part(const Part& part);
  static Result<Part> decode(const std::string& text, int rank);

  const World& world() const { return control_.world(); }
  // The rank that makes, commits and removes where `rank` writes: rank 0, or the first of a node.
  int leader_of(int rank) const;
  bool leads() const { return leader_of(world().rank) == world().rank; }
  std::string called(int rank) const;
  Result<std::vector<std::string>> gather(const char* name, const std::string& mine);
  Status all_well(const char* name, const Status& mine);

  Status attempt(const SaveJob& job, Outcome& outcome, Manifest& manifest);
  // Of all ranks, and of those that write where this one does.
  struct Bytes {
    uint64_t all = 0, here = 0;
    int files = 0;  // here
  };
  Result<Bytes> count_bytes(const SaveJob& job);
  Result<std::string> make_temporary(uint64_t step, const Bytes& bytes);
  Status prepare(const std::string& temporary, const Bytes& bytes) const;
  Result<Part> write_in_turn(const std::string& temporary, const SaveJob& job);
  Result<Part> write(const std::string& temporary, const SaveJob& job) const;
  Result<Manifest> assemble(const SaveJob& job, const std::vector<std::string>& parts) const;
  Status commit(const std::string& temporary, Manifest& manifest);
  Status decide(const Status& mine, Outcome& outcome);

  Status read_back(const Manifest& manifest) const;
  Status retain();
  Result<std::string> set_aside(uint64_t step, const PassedOver* bad) const;

  const Level level_;
  Directory dir_;
  const SaveOptions options_;
  Control& control_;
  Ownership ownership_;  // of a rank that leads
  std::vector<std::string> warnings_;
};

}  // namespace trainlaunch
