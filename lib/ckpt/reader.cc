#include <algorithm>
#include <nlohmann/json.hpp>

#include "ckpt/ckpt.h"
#include "ckpt/directory.h"
#include "ckpt/manifest.h"
#include "ckpt/shard_file.h"

namespace trainlaunch {

namespace {

using nlohmann::json;

// Part of a file that goes to part of a wanted piece.
struct Move {
  uint64_t position = 0;  // bytes, in the file
  View to;                // f32
};

class DirectoryReader final : public Reader {
 public:
  DirectoryReader(Level level, Directory dir, Manifest manifest)
      : level_(level), dir_(std::move(dir)), manifest_(std::move(manifest)) {
    for (const Run& run : manifest_.runs) by_slot_[{run.tensor, run.slot}].push_back(&run);
  }

  const State& state() const override { return manifest_.state; }
  const TensorSizes& tensors() const override { return manifest_.tensors; }
  std::set<std::string> slots() const override {
    std::set<std::string> all;
    for (const auto& [tensor_and_slot, runs] : by_slot_) all.insert(tensor_and_slot.second);
    return all;
  }
  const std::string& path() const override { return dir_.path(); }
  const std::string& digest() const override { return manifest_.digest; }
  Level level() const override { return level_; }
  bool whole() const override { return last_file_ - first_file_ == manifest_.files.size(); }

  Status covers(std::span<const Piece> wanted) const override {
    std::vector<std::vector<Move>> moves(manifest_.files.size());
    for (const Piece& piece : wanted)
      if (auto s = plan(piece, moves); !s) return s;
    for (size_t f = 0; f < moves.size(); ++f)
      if (!moves[f].empty() && (f < first_file_ || f >= last_file_))
        return fail(dir_.path() + " lacks " + manifest_.files[f].name + ", which another node has");
    return {};
  }

  Status read(std::span<const Piece> wanted, Device& device, Stream& stream) override {
    std::vector<std::vector<Move>> moves(manifest_.files.size());
    for (const Piece& piece : wanted)
      if (auto s = plan(piece, moves); !s) return s;
    for (size_t f = 0; f < moves.size(); ++f)
      if (auto s = read_file(manifest_.files[f], moves[f], device, stream); !s) return s;
    return {};
  }

  // This rank's equal part of what the ranks of this world have before them: everything, or on each
  // node what its ranks wrote, who must then be the same as now.
  Status verify_share(const World& world) {
    const auto& files = manifest_.files;
    if (level_ == Level::shared) return verify_share(files, world.rank, world.size);
    if (files.size() != static_cast<size_t>(world.size))
      return fail(dir_.path() + " is of " + std::to_string(files.size()) + " ranks");
    first_file_ = static_cast<size_t>(world.rank - world.local_rank);
    last_file_ = first_file_ + static_cast<size_t>(world.local_size);
    return verify_share(std::span(files).subspan(first_file_, last_file_ - first_file_),
                        world.local_rank, world.local_size);
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

  // The rank-th of `size` equal parts of all chunks.
  Status verify_share(std::span<const ShardFile> files, int rank, int size) const {
    uint64_t all = 0, before = 0;
    for (const ShardFile& file : files) all += file.digests.size();
    const uint64_t from = all * static_cast<uint64_t>(rank) / static_cast<uint64_t>(size),
                   to = all * static_cast<uint64_t>(rank + 1) / static_cast<uint64_t>(size);
    for (const ShardFile& file : files) {
      const uint64_t after = before + file.digests.size(), first = std::max(from, before),
                     last = std::min(to, after);
      if (first < last)
        if (auto s = verify_shard(dir_, file, first - before, last - before); !s) return s;
      before = after;
    }
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

  const Level level_;
  Directory dir_;
  Manifest manifest_;
  size_t first_file_ = 0, last_file_ = manifest_.files.size();  // that are here
  std::map<std::pair<std::string, std::string>, std::vector<const Run*>> by_slot_;
};

Result<std::unique_ptr<DirectoryReader>> open_step(const Source& source, uint64_t step) {
  auto run = Directory::open(source.path);
  if (!run) return forward(run);
  auto dir = run->enter(checkpoint_name(step));
  if (!dir) return forward(dir);
  auto manifest = read_manifest(*dir);
  if (!manifest) return forward(manifest);
  if (manifest->state.step != step)
    return fail(dir->path_of(manifest_name) + " is of step " +
                std::to_string(manifest->state.step));
  return std::make_unique<DirectoryReader>(source.level, std::move(*dir), std::move(*manifest));
}

// "500, 1000" for an error.
std::string enumerate(const std::vector<uint64_t>& steps) {
  std::string all;
  for (uint64_t s : steps) all += (all.empty() ? "" : ", ") + std::to_string(s);
  return all.empty() ? "none" : all;
}

// A checkpoint that may be taken: of which source, and the step.
struct Candidate {
  size_t source = 0;
  uint64_t step = 0;
};

// The most wanted first: the newest, and of one step the nearest.
Result<std::vector<Candidate>> candidates(std::span<const Source> sources,
                                          std::optional<uint64_t> step) {
  std::vector<Candidate> all;
  std::vector<uint64_t> known;
  for (size_t i = 0; i < sources.size(); ++i) {
    auto steps = list_checkpoints(sources[i].path);
    if (!steps) return forward(steps);
    for (uint64_t s : *steps) {
      known.push_back(s);
      if (!step || s == *step) all.push_back({i, s});
    }
  }
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  if (step && all.empty())
    return fail("no checkpoint of step " + std::to_string(*step) + " in " + sources[0].path +
                    "; there are: " + enumerate(known),
                exit_code::usage);
  std::sort(all.begin(), all.end(), [&](const Candidate& a, const Candidate& b) {
    if (a.step != b.step) return a.step > b.step;
    return sources[a.source].level == Level::local && sources[b.source].level != Level::local;
  });
  return all;
}

// What rank 0 says next: this one, of this digest, or that it cannot; or that there is none left.
struct Proposal {
  std::optional<Candidate> candidate;
  std::string digest, problem;
  bool usable() const { return candidate && problem.empty(); }
};

std::string encode(const Proposal& p) {
  json j{{"digest", p.digest}, {"problem", p.problem}};
  if (p.candidate) j["candidate"] = {p.candidate->source, p.candidate->step};
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<Proposal> decode(const std::string& text) {
  try {
    const json j = json::parse(text);
    Proposal p{std::nullopt, j.at("digest"), j.at("problem")};
    if (j.contains("candidate")) p.candidate = {j.at("candidate").at(0), j.at("candidate").at(1)};
    return p;
  } catch (const json::exception& e) {
    return fail(std::string("resume: cannot read what rank 0 proposes: ") + e.what());
  }
}

std::string called(int rank, const World& world) {
  return "rank " + std::to_string(rank) + " (" + world.node_name(rank) + ")";
}

// One rank's part in the search.
class Search {
 public:
  Search(std::span<const Source> sources, Control& control)
      : sources_(sources), control_(control), world_(control.world()) {}

  // On rank 0 alone.
  Status list(std::optional<uint64_t> step) {
    auto all = candidates(sources_, step);
    if (!all) return forward(all);
    left_ = std::move(*all);
    return {};
  }

  // The next proposal of rank 0, everywhere; `listed`: what became of the list.
  Result<Proposal> next(const Status& listed) {
    Proposal mine;
    if (world_.rank == 0) mine = propose(listed);
    auto all = control_.gather("resume: which checkpoint", encode(mine), deadline());
    if (!all) return forward(all);
    return decode(all->front());
  }

  // The reader of a proposal that all have verified, or the first objection.
  Result<std::unique_ptr<DirectoryReader>> examine(const Proposal& p) {
    auto reader = check(p);
    auto reports =
        control_.gather("resume: is it good", reader ? "" : reader.error().what, deadline());
    if (!reports) return forward(reports);
    for (size_t r = 0; r < reports->size(); ++r)
      if (!(*reports)[r].empty())
        return fail(called(static_cast<int>(r), world_) + ": " + (*reports)[r]);
    return reader;
  }

 private:
  static Deadline deadline() { return Deadline::in(storage_timeout); }

  Proposal propose(const Status& listed) {
    Proposal p;
    if (!listed) p.problem = listed.error().what;
    if (!listed || left_.empty()) return p;
    p.candidate = left_.front();
    left_.erase(left_.begin());
    auto reader = open_step(sources_[p.candidate->source], p.candidate->step);
    if (reader) p.digest = (*reader)->digest();
    if (!reader) p.problem = called(0, world_) + ": " + reader.error().what;
    return p;
  }

  Result<std::unique_ptr<DirectoryReader>> check(const Proposal& p) const {
    auto reader = open_step(sources_[p.candidate->source], p.candidate->step);
    if (!reader) return reader;
    if ((*reader)->digest() != p.digest)
      return fail("sees another manifest than rank 0 in " + (*reader)->path());
    if (auto s = (*reader)->verify_share(world_); !s) return forward(s);
    return reader;
  }

  const std::span<const Source> sources_;
  Control& control_;
  const World& world_;
  std::vector<Candidate> left_;
};

}  // namespace

Result<std::unique_ptr<Reader>> Reader::open(const std::string& run, std::optional<uint64_t> step) {
  const Source shared{Level::shared, run};
  auto all = candidates({&shared, 1}, step);
  if (!all) return forward(all);
  if (all->empty()) return fail("no checkpoint in " + run, exit_code::usage);
  auto reader = open_step(shared, all->front().step);
  if (!reader) return forward(reader);
  return std::unique_ptr<Reader>(std::move(*reader));
}

Result<std::unique_ptr<Reader>> Reader::open_at(const std::string& checkpoint) {
  auto dir = Directory::open(checkpoint);
  if (!dir) return forward(dir);
  auto manifest = read_manifest(*dir);
  if (!manifest) return forward(manifest);
  return std::make_unique<DirectoryReader>(Level::shared, std::move(*dir), std::move(*manifest));
}

Result<Reader::Agreed> Reader::agree(std::span<const Source> sources, std::optional<uint64_t> step,
                                     Control& control) {
  Search search(sources, control);
  Status listed;
  if (control.world().rank == 0) listed = search.list(step);

  Agreed agreed;
  for (;;) {
    auto proposal = search.next(listed);
    if (!proposal) return forward(proposal);
    if (!proposal->candidate && !proposal->problem.empty())
      return fail(proposal->problem, exit_code::usage);
    if (!proposal->candidate) break;
    const Source& source = sources[proposal->candidate->source];
    std::string against = proposal->problem;
    if (proposal->usable()) {
      auto reader = search.examine(*proposal);
      if (reader) {
        agreed.reader = std::move(*reader);
        return agreed;
      }
      against = reader.error().what;
    }
    agreed.passed_over.push_back(
        {source.level, proposal->candidate->step,
         (source.level == Level::local ? "local checkpoint of step " : "checkpoint of step ") +
             std::to_string(proposal->candidate->step) + " cannot be used: " + against});
  }
  const auto shared = std::find_if(agreed.passed_over.begin(), agreed.passed_over.end(),
                                   [](const PassedOver& p) { return p.level == Level::shared; });
  const bool lost = shared != agreed.passed_over.end() || (step && !agreed.passed_over.empty());
  if (!lost) return agreed;
  const PassedOver& first = shared != agreed.passed_over.end() ? *shared : agreed.passed_over[0];
  return fail(first.why + (agreed.passed_over.size() > 1 || !step
                               ? "; nor can an older one in " + sources[0].path
                               : ""),
              exit_code::hopeless);
}

}  // namespace trainlaunch
