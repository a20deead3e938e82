#include "ckpt/place.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "ckpt/retention.h"

namespace trainlaunch {

namespace {

using nlohmann::json;

std::string text_of(const Status& s) { return s ? std::string() : s.error().what; }

std::string mib(uint64_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

std::string dump(const json& j) { return j.dump(-1, ' ', false, json::error_handler_t::replace); }

// "job 12, process 345 on n1": whom to look for when the directory is taken.
std::string owner_name(const World& world) {
  const char* job = std::getenv("SLURM_JOB_ID");
  return (job ? "job " + std::string(job) + ", " : "") + "process " + std::to_string(getpid()) +
         " on " + world.node_name(world.rank);
}

std::string name_of(Level level, uint64_t step) {
  return (level == Level::local ? "local checkpoint of step " : "checkpoint of step ") +
         std::to_string(step);
}

// Ranks on the node that has most of them.
int largest_node(const World& world) {
  std::vector<int> ranks(world.nodes.size());
  for (int node : world.node_of) ++ranks[static_cast<size_t>(node)];
  return *std::max_element(ranks.begin(), ranks.end());
}

}  // namespace

// What a rank says about its part of a save: a result, or why there is none. -------------------

std::string Place::encode(const Result<Part>& part) {
  auto text = part ? caught([&] { return encode_part(*part); })
                   : Result<std::string>(fail(part.error().what));
  return text ? std::move(*text) : dump({{"error", text.error().what}});
}

Result<std::string> Place::encode_part(const Part& part) {
  json runs = json::array();
  for (const Run& r : part.runs) runs.push_back({r.tensor, r.slot, r.offset, r.length, r.position});
  std::string text = dump({{"bytes", part.file.bytes},
                           {"chunk", part.file.chunk},
                           {"digests", part.file.digests},
                           {"runs", runs}});
  if (text.size() > Control::max_value)
    return fail("its " + std::to_string(part.runs.size()) +
                " runs are more than a message has room for; raise parallel.bucket-mib");
  return text;
}

// From another rank of the same program: malformed text is not expected, but is an error.
Result<Place::Part> Place::decode(const std::string& text, int rank) {
  try {
    const json j = json::parse(text);
    if (j.contains("error")) return fail(j.at("error").get<std::string>());
    Part part{{shard_name(rank), j.at("bytes"), j.at("chunk"), j.at("digests")}, {}};
    for (const json& r : j.at("runs"))
      part.runs.push_back(
          {r.at(0), r.at(1), r.at(2), r.at(3), static_cast<uint64_t>(rank), r.at(4)});
    return part;
  } catch (const json::exception& e) {
    return fail(std::string("cannot read what the rank reported: ") + e.what());
  }
}

int Place::leader_of(int rank) const {
  if (level_ == Level::shared) return 0;
  const auto& node_of = world().node_of;
  const auto first = std::find(node_of.begin(), node_of.end(), node_of[static_cast<size_t>(rank)]);
  return static_cast<int>(first - node_of.begin());
}

std::string Place::called(int rank) const {
  return "rank " + std::to_string(rank) + " (" + world().node_name(rank) + "): ";
}

// The names are of the thread that saves: another one may use the channel at the same time. What
// there is no memory to say is said later: the others wait for it, and count their gathers.
Result<std::vector<std::string>> Place::gather(const char* name, const std::string& mine) {
  const Deadline deadline = Deadline::in(storage_timeout);
  for (;;) {
    try {
      return control_.gather(name, mine, deadline);
    } catch (const std::bad_alloc&) {
      if (deadline.over()) return fail("out of memory");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

// The first error of any rank, on all.
Status Place::all_well(const char* name, const Status& mine) {
  auto all = gather(name, text_of(mine));
  if (!all) return forward(all);
  for (size_t r = 0; r < all->size(); ++r)
    if (!(*all)[r].empty()) return fail(called(static_cast<int>(r)) + (*all)[r]);
  return {};
}

// Opening ----------------------------------------------------------------------------------------

Result<std::unique_ptr<Place>> Place::open(const Source& where, const SaveOptions& options,
                                           Control& control) {
  const World& world = control.world();
  const bool leads = where.level == Level::shared ? world.rank == 0 : world.local_rank == 0;
  auto open_mine = [&]() -> Result<std::unique_ptr<Place>> {
    auto dir = leads ? Directory::open_or_make(where.path) : Directory::open(where.path);
    if (!dir) return forward(dir);
    std::unique_ptr<Place> place(new Place(where.level, std::move(*dir), options, control));
    if (!leads) return place;
    auto owned = Ownership::take(place->dir_, owner_name(world), place->warnings_);
    if (!owned) return forward(owned);
    place->ownership_ = std::move(*owned);
    return place;
  };
  // Those that lead make the directory; the others open it when it is there.
  Result<std::unique_ptr<Place>> mine;
  const std::string option = where.level == Level::shared ? "run-dir: " : "checkpoint.local-dir: ";
  for (bool first : {true, false}) {
    const bool acts = first == leads;
    if (acts) mine = open_mine();
    auto all = control.gather("checkpoint: open", acts && !mine ? mine.error().what : "",
                              Deadline::in(storage_timeout));
    if (!all) return forward(all);
    for (size_t r = 0; r < all->size(); ++r)
      if (!(*all)[r].empty())
        return fail(option + (r > 0 ? world.node_name(r) + ": " : "") + (*all)[r],
                    exit_code::usage);
  }
  return mine;
}

// Saving -----------------------------------------------------------------------------------------

Outcome Place::thrown(const SaveJob& job, const std::string& what) const {
  Outcome outcome;
  outcome.level = level_;
  outcome.step = job.state.step;
  outcome.status = fail(name_of(level_, job.state.step) + " failed: " + what);
  outcome.out_of_step = world().size > 1;
  return outcome;
}

std::vector<std::string> Place::save(const SaveJob& job, const Decided& decided) {
  Outcome outcome;
  outcome.level = level_;
  outcome.step = job.state.step;
  outcome.path = dir_.path_of(checkpoint_name(job.state.step));
  Manifest manifest;
  auto done = attempt(job, outcome, manifest);
  const std::string which = name_of(level_, job.state.step);
  if (!done) {
    outcome.status = fail(which + " failed: " + done.error().what);
    decided(std::move(outcome));
    return {};
  }
  decided(std::move(outcome));

  std::vector<std::string> notes;
  auto note = [&](const Status& s) {
    if (!s && leads()) notes.push_back(which + ": " + s.error().what);
  };
  if (options_.verify && !job.how.hurry) {
    const Status read = all_well("save: read back", caught([&] { return read_back(manifest); }));
    note(read);
    if (read) note(caught([&] { return mark_verified(job.state.step, manifest.digest); }));
  }
  if (leads()) note(caught([&] { return retain(); }));
  // Together: a rank that came back earlier would wait for the others in the next training step,
  // with less patience than storage needs.
  auto together = gather("save: done", "");
  if (!together) note(forward(together));
  return notes;
}

// Errors are the same on every rank, but for a lost channel. What is thrown between two gathers is
// an error of the work there: the rank goes on to the next one, where the others wait for it.
Status Place::attempt(const SaveJob& job, Outcome& outcome, Manifest& manifest) {
  auto bytes = count_bytes(job);
  if (!bytes) return forward(bytes);
  outcome.bytes = bytes->all;
  auto temporary = make_temporary(job.state.step, *bytes);
  if (!temporary) return forward(temporary);

  const auto part = write_in_turn(*temporary, job);
  auto parts = gather("save: written", encode(part));
  Status done;
  if (parts) {
    auto assembled = caught([&] { return assemble(job, *parts); });
    if (!assembled) done = forward(assembled);
    if (assembled) manifest = std::move(*assembled);
  } else {
    done = forward(parts);
  }
  if (leads() && done) done = caught([&] { return commit(*temporary, manifest); });
  if (parts) done = decide(done, outcome);
  // What cannot be removed now is removed at the next start.
  if (leads() && !done && !ownership_.lost() && dir_.has(*temporary))
    (void)dir_.remove(*temporary, manifest_name);
  return done;
}

// All say how they fared, and all hear it.
Status Place::decide(const Status& mine, Outcome& outcome) {
  auto all = gather("save: outcome", (ownership_.lost() ? "!" : "") + text_of(mine));
  if (!all) return forward(all);
  for (size_t r = 0; r < all->size(); ++r) {
    std::string& said = (*all)[r];
    if (said.empty()) continue;
    // Without another's part, or its word, this one's is of no use.
    if (leads() && mine) (void)dir_.remove(checkpoint_name(outcome.step), manifest_name);
    outcome.succeeded_by_another = said.starts_with("!");
    if (outcome.succeeded_by_another) said.erase(0, 1);
    return fail(level_ == Level::shared && r == 0 ? said : called(static_cast<int>(r)) + said);
  }
  return {};
}

// How large all of it is, when every rank has its copy.
Result<Place::Bytes> Place::count_bytes(const SaveJob& job) {
  Status taken = job.taken;
  if (taken) taken = caught([&] { return job.snapshot->ready(Deadline::in(storage_timeout)); });
  auto all = gather("save: begin",
                    taken ? std::to_string(job.snapshot->image().size()) : "!" + text_of(taken));
  if (!all) return forward(all);
  Bytes bytes;
  for (size_t r = 0; r < all->size(); ++r) {
    const int rank = static_cast<int>(r);
    if ((*all)[r].starts_with("!")) return fail(called(rank) + (*all)[r].substr(1));
    const uint64_t n = std::strtoull((*all)[r].c_str(), nullptr, 10);
    bytes.all += n;
    if (leader_of(rank) != leader_of(world().rank)) continue;
    bytes.here += n;
    ++bytes.files;
  }
  return bytes;
}

Result<std::string> Place::make_temporary(uint64_t step, const Bytes& bytes) {
  std::string answer;  // "+<name>", or an error
  if (leads()) {
    const std::string name = temporary_name(step);
    const Status ready = caught([&] { return prepare(name, bytes); });
    answer = ready ? "+" + name : text_of(ready);
  }
  auto all = gather("save: directory", answer);
  if (!all) return forward(all);
  const auto name_from = [&](int leader) { return (*all)[static_cast<size_t>(leader)]; };
  const std::string mine = name_from(leader_of(world().rank));
  for (int r = 0; r < world().size; ++r) {
    const std::string said = name_from(leader_of(r));
    if (said.starts_with("+")) continue;
    if (leads() && mine.starts_with("+")) (void)dir_.remove(mine.substr(1), manifest_name);
    return fail(level_ == Level::shared ? said : called(leader_of(r)) + said);
  }
  return mine.substr(1);
}

Status Place::prepare(const std::string& temporary, const Bytes& bytes) const {
  auto space = dir_.space();
  if (!space) return forward(space);
  // The shards, the manifest, the mark that all is read back, and the directory.
  const uint64_t needed = bytes.here + (uint64_t{1} << 20),
                 files = static_cast<uint64_t>(bytes.files) + 3;
  if (space->bytes < needed)
    return fail(dir_.path() + " has " + mib(space->bytes) + " free and the checkpoint needs " +
                mib(needed));
  if (space->files < files)
    return fail(dir_.path() + " has room for " + std::to_string(space->files) +
                " more files and the checkpoint needs " + std::to_string(files));
  return dir_.make(temporary);
}

// At most so many ranks of a node write at a time: it is a disk, or one way to a file server.
Result<Place::Part> Place::write_in_turn(const std::string& temporary, const SaveJob& job) {
  const int most = largest_node(world()), at_once = options_.writers > 0 ? options_.writers : most;
  Result<Part> part;
  for (int turn = 0; turn * at_once < most; ++turn) {
    if (turn > 0)
      if (auto all = gather("save: turn", ""); !all) return forward(all);
    if (world().local_rank / at_once == turn) part = caught([&] { return write(temporary, job); });
  }
  return part;
}

Result<Place::Part> Place::write(const std::string& temporary, const SaveJob& job) const {
  auto dir = dir_.enter(temporary);
  if (!dir) return forward(dir);
  auto file = write_shard(*dir, shard_name(world().rank), job.snapshot->image());
  if (!file) return forward(file);
  return Part{std::move(*file), job.snapshot->runs()};
}

// The same on every rank.
Result<Manifest> Place::assemble(const SaveJob& job, const std::vector<std::string>& parts) const {
  Manifest manifest;
  manifest.state = job.state;
  manifest.tensors = job.tensors;
  for (size_t r = 0; r < parts.size(); ++r) {
    auto part = decode(parts[r], static_cast<int>(r));
    if (!part) return fail(called(static_cast<int>(r)) + part.error().what);
    manifest.files.push_back(std::move(part->file));
    manifest.runs.insert(manifest.runs.end(), part->runs.begin(), part->runs.end());
  }
  if (auto s = check_cover(manifest.runs, job.tensors); !s) return forward(s);
  return manifest;
}

Status Place::commit(const std::string& temporary, Manifest& manifest) {
  auto dir = dir_.enter(temporary);
  if (!dir) return forward(dir);
  const std::string text = write_manifest(manifest);
  if (auto s = dir->write_new(manifest_name, text); !s) return s;
  if (auto s = dir->sync(); !s) return s;
  if (auto s = ownership_.confirm(dir_); !s) return s;
  manifest.digest = manifest_digest(text);
  if (auto s = dir_.rename_new(temporary, checkpoint_name(manifest.state.step)); !s) return s;
  return dir_.sync();
}

// Afterwards -------------------------------------------------------------------------------------

Status Place::read_back(const Manifest& manifest) const {
  auto dir = dir_.enter(checkpoint_name(manifest.state.step));
  if (!dir) return forward(dir);
  const ShardFile& mine = manifest.files[static_cast<size_t>(world().rank)];
  return verify_shard(*dir, mine, 0, mine.digests.size(), /*from_storage=*/true);
}

Status Place::mark_verified(uint64_t step, const std::string& digest) const {
  if (!leads()) return {};
  auto dir = dir_.enter(checkpoint_name(step));
  if (!dir) return forward(dir);
  if (dir->has(verified_name)) return {};
  return dir->write_new(verified_name, digest + "\n");
}

Status Place::retain() {
  auto steps = list_checkpoints(dir_.path());
  if (!steps) return forward(steps);
  std::vector<Kept> committed;
  for (uint64_t step : *steps) {
    auto dir = dir_.enter(checkpoint_name(step));
    committed.push_back({step, !options_.verify || (dir && dir->has(verified_name))});
  }
  for (uint64_t step : expendable(committed, options_.keep, options_.keep_every)) {
    if (auto s = ownership_.confirm(dir_); !s) return s;
    if (auto s = dir_.remove(checkpoint_name(step), manifest_name); !s) return s;
  }
  return {};
}

// Under the first name that is free, as an earlier resumption may have used some.
Result<std::string> Place::set_aside(uint64_t step, const PassedOver* bad) const {
  const std::string name = checkpoint_name(step), base = name + (bad ? ".bad" : ".aside");
  std::string to = base;
  for (int n = 1;; ++n) {
    bool taken = false;
    auto s = dir_.rename_new(name, to, &taken);
    if (!s && !taken) return forward(s);
    if (s) break;
    to = base + "." + std::to_string(n);
  }
  // A help to people; run.log has it too.
  if (bad)
    if (auto inside = dir_.enter(to)) (void)inside->write_new(reason_name, bad->why + "\n");
  return dir_.path_of(to);
}

Result<std::vector<std::string>> Place::go_on_from(uint64_t step,
                                                   std::span<const PassedOver> passed_over) {
  std::vector<std::string> done;
  if (!leads()) return done;
  auto steps = list_checkpoints(dir_.path());
  if (!steps) return forward(steps);
  // Newest first: cut short, this must not leave the far end of the abandoned run as the newest.
  for (auto it = steps->rbegin(); it != steps->rend(); ++it) {
    const auto bad = std::find_if(passed_over.begin(), passed_over.end(), [&](const PassedOver& p) {
      return p.level == level_ && p.step == *it;
    });
    const bool is_bad = bad != passed_over.end();
    if (*it <= step && !is_bad) continue;
    if (level_ == Level::local) {
      if (auto s = dir_.remove(checkpoint_name(*it), manifest_name); !s) return forward(s);
      continue;
    }
    auto path = set_aside(*it, is_bad ? &*bad : nullptr);
    if (!path) return forward(path);
    if (auto s = dir_.sync(); !s) return forward(s);
    done.push_back("set aside: " + *path);
  }
  return done;
}

}  // namespace trainlaunch
