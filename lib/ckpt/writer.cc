#include <algorithm>
#include <nlohmann/json.hpp>

#include "ckpt/ckpt.h"
#include "ckpt/directory.h"
#include "ckpt/manifest.h"
#include "ckpt/shard_file.h"

namespace trainlaunch {

namespace {

using nlohmann::json;

// What a rank says about its part of a save: a result, or why there is none.
std::string encode(const Status& s) { return s ? std::string() : s.error().what; }

std::string mib(uint64_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

struct Part {
  ShardFile file;
  std::vector<Run> runs;
};

std::string encode(const Result<Part>& part) {
  if (!part)
    return json{{"error", part.error().what}}.dump(-1, ' ', false, json::error_handler_t::replace);
  json runs = json::array();
  for (const Run& r : part->runs)
    runs.push_back({r.tensor, r.slot, r.offset, r.length, r.position});
  return json{{"bytes", part->file.bytes}, {"digest", part->file.digest}, {"runs", runs}}.dump();
}

// From another rank of the same program: malformed text is not expected, but is an error.
Result<Part> decode_part(const std::string& text, int rank) {
  try {
    const json j = json::parse(text);
    if (j.contains("error")) return fail(j.at("error").get<std::string>());
    Part part{{shard_name(rank), j.at("bytes"), j.at("digest")}, {}};
    for (const json& r : j.at("runs"))
      part.runs.push_back(
          {r.at(0), r.at(1), r.at(2), r.at(3), static_cast<uint64_t>(rank), r.at(4)});
    return part;
  } catch (const json::exception& e) {
    return fail(std::string("cannot read what the rank reported: ") + e.what());
  }
}

class DirectoryWriter final : public Writer {
 public:
  DirectoryWriter(Directory run, Control& control) : run_(std::move(run)), control_(control) {}

  Status save(std::span<const Piece> owned, const TensorSizes& tensors, const State& state,
              Device& device, Stream& stream) override {
    const auto begin = Clock::now();
    result_.reset();
    auto bytes = attempt(owned, tensors, state, device, stream);
    if (!bytes)
      return fail("checkpoint of step " + std::to_string(state.step) +
                  " failed: " + bytes.error().what);
    const Seconds took = Clock::now() - begin;
    result_ = Committed{state.step, run_.path_of(checkpoint_name(state.step)), *bytes, took, took};
    return {};
  }

  std::optional<Result<Committed>> poll() override { return std::exchange(result_, std::nullopt); }

  Status retain(int keep) override {
    if (keep <= 0 || rank() != 0) return {};
    auto steps = list_checkpoints(run_.path());
    if (!steps) return forward(steps);
    const size_t kept = std::min(steps->size(), static_cast<size_t>(keep));
    for (size_t i = 0; i + kept < steps->size(); ++i) {
      // Under a temporary name first: a removal cut short must not leave half a checkpoint.
      const std::string doomed = temporary_name((*steps)[i]);
      if (auto s = run_.rename_new(checkpoint_name((*steps)[i]), doomed); !s) return s;
      if (auto s = run_.sync(); !s) return s;
      if (auto s = run_.remove(doomed); !s) return s;
    }
    return {};
  }

  Result<std::vector<std::string>> set_aside_after(uint64_t step) override {
    std::vector<std::string> moved;
    if (rank() != 0) return moved;
    auto steps = list_checkpoints(run_.path());
    if (!steps) return forward(steps);
    // Newest first: cut short, this must not leave the far end of the abandoned run as the newest.
    for (; !steps->empty() && steps->back() > step; steps->pop_back()) {
      auto name = set_aside(checkpoint_name(steps->back()));
      if (!name) return forward(name);
      if (auto s = run_.sync(); !s) return forward(s);
      moved.push_back(run_.path_of(*name));
    }
    return moved;
  }

  const std::vector<std::string>& warnings() const override { return warnings_; }

  // Rank 0, before it changes anything in the directory.
  Status lock() const {
    if (run_.lock()) return {};
    return fail(run_.path() + " is in use by another job; wait for it or give another run-dir");
  }

  // Names are never used again, so that one which stays is in nobody's way.
  void remove_leftovers() {
    auto note = [&](const Error& e) { warnings_.push_back("leftovers of a save: " + e.what); };
    auto names = run_.names();
    if (!names) return note(names.error());
    for (const std::string& name : *names)
      if (is_temporary(name))
        if (auto s = run_.remove(name); !s) note(s.error());
  }

 private:
  int rank() const { return control_.world().rank; }

  // The new name: the first that is free, as an earlier resumption may have used some.
  Result<std::string> set_aside(const std::string& name) const {
    std::string to = name + ".aside";
    for (int n = 1;; ++n) {
      bool taken = false;
      auto s = run_.rename_new(name, to, &taken);
      if (s) return to;
      if (!taken) return forward(s);
      to = name + ".aside." + std::to_string(n);
    }
  }

  Result<std::vector<std::string>> gather(const char* name, const std::string& mine) {
    return control_.gather(name, mine, Deadline::in(storage_timeout));
  }

  std::string say(int r) const {
    const World& w = control_.world();
    return "rank " + std::to_string(r) + " (" + w.nodes[w.node_of[r]] + "): ";
  }

  // The bytes that were committed. Errors are the same on every rank, but for a lost channel.
  Result<uint64_t> attempt(std::span<const Piece> owned, const TensorSizes& tensors,
                           const State& state, Device& device, Stream& stream) {
    const ShardLayout layout = lay_out(owned);
    auto sizes = gather("checkpoint: size", std::to_string(layout.bytes));
    if (!sizes) return forward(sizes);
    uint64_t total = 0;
    for (const std::string& s : *sizes) total += std::strtoull(s.c_str(), nullptr, 10);

    const std::string temporary = rank() == 0 ? temporary_name(state.step) : "";
    auto made =
        gather("checkpoint: directory",
               rank() != 0 ? "" : json{temporary, encode(prepare(temporary, total))}.dump());
    if (!made) return forward(made);
    const json answer = json::parse((*made)[0], nullptr, false);
    if (!answer.is_array() || answer.size() != 2 || !answer[0].is_string() ||
        !answer[1].is_string())
      return fail(say(0) + "unreadable answer");
    if (!answer[1].get<std::string>().empty()) return fail(answer[1].get<std::string>());

    auto parts = gather("checkpoint: written",
                        encode(write(answer[0].get<std::string>(), layout, device, stream)));
    Status done;
    if (rank() == 0) {
      done = parts ? commit(temporary, *parts, tensors, state) : Status(forward(parts));
      if (!done) (void)run_.remove(temporary);  // what is left is removed at the next start
    }
    if (!parts) return forward(parts);
    auto outcome = gather("checkpoint: outcome", encode(done));
    if (!outcome) return forward(outcome);
    if (!(*outcome)[0].empty()) return fail((*outcome)[0]);
    return total;
  }

  Status prepare(const std::string& temporary, uint64_t total) const {
    auto free = run_.free_bytes();
    if (!free) return forward(free);
    if (*free < total + (uint64_t{1} << 20))
      return fail(run_.path() + " has " + mib(*free) + " free and the checkpoint needs " +
                  mib(total));
    return run_.make(temporary);
  }

  Result<Part> write(const std::string& temporary, const ShardLayout& layout, Device& device,
                     Stream& stream) const {
    auto dir = run_.enter(temporary);
    if (!dir) return forward(dir);
    auto file = write_shard(*dir, shard_name(rank()), layout, device, stream);
    if (!file) return forward(file);
    Part part{*file, {}};
    for (size_t i = 0; i < layout.pieces.size(); ++i) {
      const Piece& p = layout.pieces[i];
      part.runs.push_back({p.tensor, p.slot, p.offset, p.length, 0, layout.positions[i]});
    }
    return part;
  }

  Status commit(const std::string& temporary, const std::vector<std::string>& reports,
                const TensorSizes& tensors, const State& state) const {
    Manifest manifest;
    manifest.state = state;
    manifest.tensors = tensors;
    for (size_t r = 0; r < reports.size(); ++r) {
      auto part = decode_part(reports[r], static_cast<int>(r));
      if (!part) return fail(say(static_cast<int>(r)) + part.error().what);
      manifest.files.push_back(part->file);
      manifest.runs.insert(manifest.runs.end(), part->runs.begin(), part->runs.end());
    }
    if (auto s = check_cover(manifest.runs, tensors); !s) return s;

    auto dir = run_.enter(temporary);
    if (!dir) return forward(dir);
    const std::string text = write_manifest(manifest),
                      what = "cannot write " + dir->path_of(manifest_name);
    auto file = dir->create(manifest_name);
    if (!file) return forward(file);
    if (auto s = write_fully(file->get(), text.data(), text.size(), what); !s) return s;
    if (fsync(file->get()) != 0) return fail_errno(what);
    if (auto s = file->close(what); !s) return s;
    if (auto s = dir->sync(); !s) return s;
    if (auto s = run_.rename_new(temporary, checkpoint_name(state.step)); !s) return s;
    return run_.sync();
  }

  Directory run_;
  Control& control_;
  std::optional<Result<Committed>> result_;
  std::vector<std::string> warnings_;
};

}  // namespace

Result<std::unique_ptr<Writer>> Writer::open(const std::string& run, Control& control) {
  // Rank 0 makes the directory; the others open it when it is there.
  auto open_mine = [&]() -> Result<std::unique_ptr<DirectoryWriter>> {
    auto dir = control.world().rank == 0 ? Directory::open_or_make(run) : Directory::open(run);
    if (!dir) return fail(dir.error().what, exit_code::usage);
    auto writer = std::make_unique<DirectoryWriter>(std::move(*dir), control);
    if (control.world().rank == 0) {
      if (auto s = writer->lock(); !s) return forward(s);
      writer->remove_leftovers();
    }
    return writer;
  };
  Result<std::unique_ptr<DirectoryWriter>> mine;
  const Deadline deadline = Deadline::in(storage_timeout);
  for (bool first : {true, false}) {
    const bool act = first == (control.world().rank == 0);
    if (act) mine = open_mine();
    const bool ok = !act || mine.has_value();
    auto all = control.gather("checkpoint: open " + run, ok ? "" : mine.error().what, deadline);
    if (!all) return forward(all);
    for (size_t r = 0; r < all->size(); ++r)
      if (!(*all)[r].empty()) return fail("run-dir: " + (*all)[r], exit_code::usage);
  }
  return std::unique_ptr<Writer>(std::move(*mine));
}

Result<std::vector<uint64_t>> list_checkpoints(const std::string& run) {
  bool missing = false;
  auto dir = Directory::open(run, &missing);
  if (!dir && missing) return std::vector<uint64_t>();
  if (!dir) return forward(dir);
  auto names = dir->names();
  if (!names) return forward(names);
  std::vector<uint64_t> steps;
  for (const std::string& name : *names)
    if (auto step = step_of(name)) steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

}  // namespace trainlaunch
