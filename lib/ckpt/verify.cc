#include "ckpt/verify.h"

#include <algorithm>

#include "ckpt/catalog.h"
#include "ckpt/manifest.h"
#include "ckpt/shard_file.h"

namespace trainlaunch {

namespace {

constexpr size_t most_lines = 20;
constexpr size_t most_runs = 3;  // named of one chunk

class Verification {
 public:
  Verification(const Directory& dir, const Progress& progress) : dir_(dir), progress_(progress) {}

  Verdict go() {
    auto manifest = read_manifest(dir_);
    if (!manifest) {
      add(manifest.error().what);
      return std::move(verdict_);
    }
    const auto step = step_in(dir_.path());
    if (step && *step != manifest->state.step)
      add(dir_.path_of(manifest_name) + " is of step " + std::to_string(manifest->state.step));
    check_names(*manifest);
    check_mark(manifest->digest);
    check_shards(*manifest);
    return std::move(verdict_);
  }

 private:
  void add(std::string line) {
    if (verdict_.damage.size() < most_lines)
      verdict_.damage.push_back(std::move(line));
    else
      ++verdict_.more;
  }

  // A file that does not belong is no harm to the tensors, but nobody knows what it is.
  void check_names(const Manifest& manifest) {
    auto names = dir_.names();
    if (!names) return add(names.error().what);
    for (const std::string& name : *names) {
      const bool shard = std::any_of(manifest.files.begin(), manifest.files.end(),
                                     [&](const ShardFile& f) { return f.name == name; });
      if (!shard && name != manifest_name && name != verified_name && name != reason_name)
        add(dir_.path_of(name) + " does not belong to the checkpoint");
    }
  }

  // A crash can leave it cut short, which says no more than that it was about to be written.
  void check_mark(const std::string& digest) {
    if (!dir_.has(verified_name)) return;
    const std::string whole = digest + "\n";
    auto text = dir_.read_text(verified_name, whole.size());
    if (!text) return add(text.error().what);
    if (text->size() < whole.size() ? !whole.starts_with(*text) : *text != whole)
      add(dir_.path_of(verified_name) +
          " is damaged: it has not the manifest's digest (the tensors do not depend on it)");
  }

  void check_shards(const Manifest& manifest) {
    const bool local = is_local_part(dir_.path());
    verdict_.expected = manifest.files.size();
    std::vector<size_t> here;
    for (size_t f = 0; f < manifest.files.size(); ++f)
      if (!local || dir_.has(manifest.files[f].name)) {
        here.push_back(f);
        all_ += manifest.files[f].bytes;
      }
    if (here.empty()) add(dir_.path() + " holds no shard");
    for (size_t f : here) check_shard(manifest, f);
    verdict_.files = here.size();
  }

  void check_shard(const Manifest& manifest, size_t index) {
    const ShardFile& file = manifest.files[index];
    auto input = ShardInput::open(dir_, file, /*from_storage=*/true);
    if (!input) {
      done_ += file.bytes;
      return add(input.error().what);
    }
    for (size_t i = 0; i < file.digests.size(); ++i) {
      const uint64_t begin = i * file.chunk, end = std::min(file.bytes, begin + file.chunk);
      auto chunk = input->chunk(i);
      if (chunk) verdict_.bytes += chunk->size();
      if (!chunk) add(chunk.error().what + "; there " + contents(manifest, index, begin, end));
      done_ += end - begin;
      if (progress_) progress_(done_, all_);
    }
  }

  // "lie wte/m elements 0 to 4096 and 3 more": what a range of a shard holds, most of it first.
  static std::string contents(const Manifest& manifest, size_t index, uint64_t begin,
                              uint64_t end) {
    struct Part {
      const Run* run;
      int64_t from, to;  // elements
    };
    std::vector<Part> parts;
    for (const Run& run : manifest.runs) {
      const uint64_t run_end = run.position + static_cast<uint64_t>(run.length) * sizeof(float);
      if (run.file != index || run.position >= end || run_end <= begin) continue;
      const auto element = [&](uint64_t at) {
        return run.offset + static_cast<int64_t>((at - run.position) / sizeof(float));
      };
      parts.push_back(
          {&run, element(std::max(begin, run.position)), element(std::min(end, run_end))});
    }
    std::stable_sort(parts.begin(), parts.end(),
                     [](const Part& a, const Part& b) { return a.to - a.from > b.to - b.from; });
    std::string text;
    for (size_t i = 0; i < std::min(parts.size(), most_runs); ++i)
      text += (i > 0 ? ", " : "lie ") + parts[i].run->tensor + "/" + parts[i].run->slot +
              " elements " + std::to_string(parts[i].from) + " to " + std::to_string(parts[i].to);
    if (parts.empty()) return "lies no tensor";
    return parts.size() > most_runs
               ? text + " and " + std::to_string(parts.size() - most_runs) + " more"
               : text;
  }

  const Directory& dir_;
  const Progress& progress_;
  Verdict verdict_;
  uint64_t done_ = 0, all_ = 0;
};

}  // namespace

Verdict verify_checkpoint(const Directory& checkpoint, const Progress& progress) {
  return Verification(checkpoint, progress).go();
}

}  // namespace trainlaunch
