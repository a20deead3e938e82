#include <algorithm>
#include <charconv>

#include "ckpt/ckpt.h"
#include "ckpt/directory.h"
#include "ckpt/manifest.h"
#include "ckpt/shard_file.h"

namespace trainlaunch {

namespace {

// Part of a file that goes to part of a wanted piece.
struct Move {
  uint64_t position = 0;  // bytes, in the file
  View to;                // f32
};

class DirectoryReader final : public Reader {
 public:
  DirectoryReader(Directory dir, Manifest manifest)
      : dir_(std::move(dir)), manifest_(std::move(manifest)) {
    for (const Run& run : manifest_.runs) by_slot_[{run.tensor, run.slot}].push_back(&run);
  }

  const State& state() const override { return manifest_.state; }
  const TensorSizes& tensors() const override { return manifest_.tensors; }
  const std::string& path() const override { return dir_.path(); }
  const std::string& digest() const override { return manifest_.digest; }

  Status read(std::span<const Piece> wanted, Device& device, Stream& stream) override {
    std::vector<std::vector<Move>> moves(manifest_.files.size());
    for (const Piece& piece : wanted)
      if (auto s = plan(piece, moves); !s) return s;
    for (size_t f = 0; f < moves.size(); ++f)
      if (auto s = read_file(manifest_.files[f], moves[f], device, stream); !s) return s;
    return {};
  }

  // An equal part of all chunks, the rank-th of size.
  Status verify_share(int rank, int size) const {
    uint64_t all = 0, before = 0;
    for (const ShardFile& file : manifest_.files) all += file.digests.size();
    const uint64_t from = all * static_cast<uint64_t>(rank) / static_cast<uint64_t>(size),
                   to = all * static_cast<uint64_t>(rank + 1) / static_cast<uint64_t>(size);
    for (const ShardFile& file : manifest_.files) {
      const uint64_t after = before + file.digests.size(), first = std::max(from, before),
                     last = std::min(to, after);
      if (first < last)
        if (auto s = verify_shard(dir_, file, first - before, last - before); !s) return s;
      before = after;
    }
    return {};
  }

 private:
  Status plan(const Piece& piece, std::vector<std::vector<Move>>& moves) const {
    if (piece.length == 0) return {};
    const int64_t end = piece.offset + piece.length;
    int64_t found = 0;
    auto runs = by_slot_.find({piece.tensor, piece.slot});
    if (runs != by_slot_.end()) {
      for (const Run* run : runs->second) {
        const int64_t from = std::max(piece.offset, run->offset),
                      to = std::min(end, run->offset + run->length);
        if (from >= to) continue;
        moves[run->file].push_back(
            {run->position + static_cast<uint64_t>(from - run->offset) * sizeof(float),
             piece.mem.slice(from - piece.offset, to - from)});
        found += to - from;
      }
    }
    // The runs of a slot are disjoint: counting is enough.
    if (found != piece.length)
      return fail(dir_.path() + " has no elements " + std::to_string(piece.offset) + " to " +
                  std::to_string(end) + " of " + piece.tensor + "/" + piece.slot);
    return {};
  }

  // Reads the chunks of a file that hold something of what is wanted.
  Status read_file(const ShardFile& file, const std::vector<Move>& moves, Device& device,
                   Stream& stream) const {
    if (moves.empty()) return {};
    auto input = ShardInput::open(dir_, file);
    if (!input) return forward(input);
    for (size_t i = 0; i < file.digests.size(); ++i) {
      const uint64_t begin = i * file.chunk, end = std::min(file.bytes, begin + file.chunk);
      const bool needed = std::any_of(moves.begin(), moves.end(), [&](const Move& m) {
        return m.position < end && m.position + m.to.bytes() > begin;
      });
      if (!needed) continue;
      auto chunk = input->chunk(i);
      if (!chunk) return forward(chunk);
      if (auto s = deliver(moves, begin, *chunk, device, stream); !s) return s;
    }
    return {};
  }

  static Status deliver(const std::vector<Move>& moves, uint64_t at,
                        std::span<const std::byte> chunk, Device& device, Stream& stream) {
    for (const Move& move : moves) {
      const uint64_t from = std::max(at, move.position),
                     to = std::min(at + chunk.size(), move.position + move.to.bytes());
      if (from >= to) continue;
      const auto first = static_cast<int64_t>((from - move.position) / sizeof(float)),
                 count = static_cast<int64_t>((to - from) / sizeof(float));
      // upload() only reads its host side.
      auto* source = const_cast<std::byte*>(chunk.data() + (from - at));
      device.upload(stream, move.to.slice(first, count), View(source, DType::f32, {count}));
    }
    return stream.record().wait(Deadline::in(storage_timeout));
  }

  Directory dir_;
  Manifest manifest_;
  std::map<std::pair<std::string, std::string>, std::vector<const Run*>> by_slot_;
};

Result<std::unique_ptr<DirectoryReader>> open_step(const Directory& run, uint64_t step) {
  auto dir = run.enter(checkpoint_name(step));
  if (!dir) return forward(dir);
  auto text = dir->read_text(manifest_name, manifest_limit);
  if (!text) return forward(text);
  const std::string what = dir->path_of(manifest_name);
  auto manifest = parse_manifest(*text, what);
  if (!manifest) return forward(manifest);
  if (manifest->state.step != step)
    return fail(what + " is of step " + std::to_string(manifest->state.step));
  return std::make_unique<DirectoryReader>(std::move(*dir), std::move(*manifest));
}

// "500, 1000" for an error.
std::string enumerate(const std::vector<uint64_t>& steps) {
  std::string all;
  for (uint64_t s : steps) all += (all.empty() ? "" : ", ") + std::to_string(s);
  return all.empty() ? "none" : all;
}

// Steps that may be taken, the most wanted first.
Result<std::vector<uint64_t>> candidates(const std::string& run, std::optional<uint64_t> step) {
  auto steps = list_checkpoints(run);
  if (!steps) return forward(steps);
  if (!step) {
    std::reverse(steps->begin(), steps->end());
    return steps;
  }
  if (std::find(steps->begin(), steps->end(), *step) == steps->end())
    return fail("no checkpoint of step " + std::to_string(*step) + " in " + run +
                    "; there are: " + enumerate(*steps),
                exit_code::usage);
  return std::vector<uint64_t>{*step};
}

// One candidate on this rank: verified, or why not.
struct Checked {
  std::unique_ptr<DirectoryReader> reader;
  std::string report;  // "+<digest>" or the error
};
Checked check(const std::string& run, uint64_t step, const World& world) {
  auto attempt = [&]() -> Result<std::unique_ptr<DirectoryReader>> {
    auto dir = Directory::open(run);
    if (!dir) return forward(dir);
    auto reader = open_step(*dir, step);
    if (!reader) return reader;
    if (auto s = (*reader)->verify_share(world.rank, world.size); !s) return forward(s);
    return reader;
  };
  auto reader = attempt();
  if (!reader) return {nullptr, reader.error().what};
  std::string report = "+" + (*reader)->digest();
  return {std::move(*reader), std::move(report)};
}

// The first report that speaks against a candidate; empty when all agree.
std::string objection(const std::vector<std::string>& reports, const World& world) {
  for (size_t r = 0; r < reports.size(); ++r) {
    const std::string who =
        "rank " + std::to_string(r) + " (" + world.nodes[world.node_of[r]] + ")";
    if (!reports[r].starts_with("+")) return who + ": " + reports[r];
    if (reports[r] != reports[0]) return who + " sees another manifest than rank 0";
  }
  return "";
}

}  // namespace

Result<std::unique_ptr<Reader>> Reader::open(const std::string& run, std::optional<uint64_t> step) {
  auto steps = candidates(run, step);
  if (!steps) return forward(steps);
  if (steps->empty()) return fail("no checkpoint in " + run, exit_code::usage);
  auto dir = Directory::open(run);
  if (!dir) return forward(dir);
  auto reader = open_step(*dir, steps->front());
  if (!reader) return forward(reader);
  return std::unique_ptr<Reader>(std::move(*reader));
}

Result<Reader::Agreed> Reader::agree(const std::string& run, std::optional<uint64_t> step,
                                     Control& control) {
  const World& world = control.world();
  auto gather = [&](const char* name, const std::string& mine) {
    return control.gather(name, mine, Deadline::in(storage_timeout));
  };
  Result<std::vector<uint64_t>> steps;
  if (world.rank == 0) steps = candidates(run, step);

  Agreed agreed;
  for (size_t next = 0;; ++next) {
    // A step, nothing when there are no more, or "!" and an error.
    std::string proposal;
    if (world.rank == 0 && !steps) proposal = "!" + steps.error().what;
    if (world.rank == 0 && steps && next < steps->size()) proposal = std::to_string((*steps)[next]);
    auto proposals = gather("resume: which checkpoint", proposal);
    if (!proposals) return forward(proposals);
    const std::string& chosen = proposals->front();
    if (chosen.starts_with("!")) return fail(chosen.substr(1), exit_code::usage);
    if (chosen.empty()) break;
    uint64_t candidate = 0;
    std::from_chars(chosen.data(), chosen.data() + chosen.size(), candidate);

    Checked mine = check(run, candidate, world);
    auto reports = gather("resume: is it good", mine.report);
    if (!reports) return forward(reports);
    const std::string against = objection(*reports, world);
    if (against.empty()) {
      agreed.reader = std::move(mine.reader);
      return agreed;
    }
    agreed.passed_over.push_back("checkpoint of step " + chosen + " cannot be used: " + against);
  }
  if (agreed.passed_over.empty()) return agreed;
  return fail(
      agreed.passed_over.front() +
          (agreed.passed_over.size() > 1 || !step ? "; nor can an older one in " + run : ""),
      exit_code::hopeless);
}

}  // namespace trainlaunch
