#include <unistd.h>

#include <cstdio>
#include <map>
#include <optional>

#include "base/printable.h"
#include "ckpt/cleanup.h"
#include "ckpt/exchange.h"
#include "launcher/checkpoint_text.h"
#include "launcher/commands.h"
#include "launcher/options.h"
#include "launcher/supervisor.h"
#include "train/words.h"

namespace trainlaunch {
namespace {

constexpr const char* usage = R"(usage: train-launch checkpoint COMMAND ...

  list RUN           every step that is there, on which level, how large, and in which state
  show CHECKPOINT    what is in one
  verify CHECKPOINT  read all of it and compare every byte with its digest
  diff A B           which tensors of two checkpoints differ, and by how much
  export CHECKPOINT  its weights as safetensors with the names of Hugging Face's GPT-2
  import INPUT       such weights as the beginning of a run
  gc RUN             remove what jobs that were cut short have left behind

CHECKPOINT, A and B are the directory of one, or a run directory, of which they mean the newest;
--step names another CHECKPOINT. Each command has a --help. train-launch-checkpoint(1) has the exit
codes.
)";

using Arguments = std::vector<std::string>;

// Reads the arguments of one command. Whatever it returns ends that: an error, or that its help was
// asked for and has been printed.
std::optional<Result<int>> read(OptionTable& table, const Arguments& arguments,
                                const std::string& what) {
  if (wants_help(arguments)) {
    std::fputs(("usage: train-launch checkpoint " + what + "\n\n" + table.help()).c_str(), stdout);
    return exit_code::done;
  }
  if (Status s = table.read_command_line(arguments); !s) return forward(s);
  return std::nullopt;
}

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

void add_format(OptionTable& t, bool& as_json) {
  t.choice<bool>("format", &as_json, {{"text", false}, {"json", true}}, "text or json");
}

// A line that is drawn over and over on a terminal, and nothing anywhere else.
class Bar {
 public:
  explicit Bar(const std::string& what) : what_(one_line(what)) {}
  ~Bar() {
    if (drawn_) std::fputs("\r\033[K", stderr);
  }
  Bar(const Bar&) = delete;
  Bar& operator=(const Bar&) = delete;

  Progress progress() {
    return [this](uint64_t done, uint64_t all) { draw(done, all); };
  }

 private:
  void draw(uint64_t done, uint64_t all) {
    constexpr uint64_t width = 30;
    if (!terminal_ || all == 0) return;
    const auto percent =
        static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(all));
    if (percent == percent_) return;
    percent_ = percent;
    drawn_ = true;
    const auto full = static_cast<size_t>(width * static_cast<uint64_t>(percent) / 100);
    std::fprintf(stderr, "\r%s [%s%s] %3d %% of %s", what_.c_str(), std::string(full, '#').c_str(),
                 std::string(width - full, ' ').c_str(), percent, mebibytes(all).c_str());
    std::fflush(stderr);
  }

  const std::string what_;
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  bool drawn_ = false;
  int percent_ = -1;
};

Result<int> run_list(const Arguments& arguments) {
  std::string run, local_dir;
  bool as_json = false;
  OptionTable table("train-launch checkpoint list");
  table.positional("RUN", &run);
  table.group("Options");
  table.text("local-dir", &local_dir, "checkpoint.local-dir of the run, to look there too", false);
  add_format(table, as_json);
  if (auto end = read(table, arguments, "list RUN [OPTION...]")) return *end;
  auto found = catalog(run, local_dir);
  if (!found) return forward(found);
  print(as_json ? catalog_json(run, *found) : catalog_table(*found));
  return exit_code::done;
}

Result<int> run_show(const Arguments& arguments) {
  std::string place;
  std::optional<uint64_t> step;
  bool as_json = false, ranges = false;
  OptionTable table("train-launch checkpoint show");
  table.positional("CHECKPOINT", &place);
  table.group("Options");
  table.optional_number("step", &step, "of the checkpoint; without it, the newest");
  table.flag("ranges", &ranges, "which elements lie where in each shard");
  add_format(table, as_json);
  if (auto end = read(table, arguments, "show CHECKPOINT [OPTION...]")) return *end;
  auto dir = find_checkpoint(place, step);
  if (!dir) return forward(dir);
  auto manifest = read_manifest(*dir);
  if (!manifest) return fail(manifest.error().what, exit_code::hopeless);
  print(as_json ? manifest_json(dir->path(), *manifest)
                : manifest_text(dir->path(), *manifest, ranges));
  return exit_code::done;
}

// All that go by a checkpoint's name.
Result<std::vector<std::string>> paths_of_all(const std::string& run,
                                              const std::string& local_dir) {
  auto found = catalog(run, local_dir);
  if (!found) return forward(found);
  std::vector<std::string> paths;
  for (const Found& f : *found)
    if (f.step && f.name == checkpoint_name(*f.step)) paths.push_back(f.path);
  if (paths.empty()) return fail("no checkpoint in " + run, exit_code::usage);
  return paths;
}

Result<int> run_verify(const Arguments& arguments) {
  std::string place, local_dir;
  std::optional<uint64_t> step;
  bool all = false, as_json = false;
  OptionTable table("train-launch checkpoint verify");
  table.positional("CHECKPOINT", &place);
  table.group("Options");
  table.optional_number("step", &step, "of the checkpoint; without it, the newest");
  table.flag("all", &all, "every checkpoint of the run");
  table.text("local-dir", &local_dir, "with --all, checkpoint.local-dir of the run", false);
  add_format(table, as_json);
  if (auto end = read(table, arguments, "verify CHECKPOINT [OPTION...]")) return *end;
  if (all && step) return fail("--all and --step exclude each other", exit_code::usage);

  std::vector<std::string> paths;
  if (all) {
    auto those = paths_of_all(place, local_dir);
    if (!those) return forward(those);
    paths = std::move(*those);
  } else {
    auto dir = find_checkpoint(place, step);
    if (!dir) return forward(dir);
    paths = {dir->path()};
  }
  std::vector<Verified> verdicts;
  bool good = true;
  for (const std::string& path : paths) {
    auto dir = Directory::open(path);
    Verified one{path, {}};
    if (dir) {
      Bar bar(path);
      one.verdict = verify_checkpoint(*dir, bar.progress());
    } else {
      one.verdict.damage = {dir.error().what};
    }
    good = good && one.verdict.damage.empty();
    if (!as_json) print(verdict_text(one));
    std::fflush(stdout);
    verdicts.push_back(std::move(one));
  }
  if (as_json) print(verdicts_json(verdicts));
  return good ? exit_code::done : exit_code::hopeless;
}

std::string cleaned_text(const Cleaned& cleaned, bool dry_run) {
  std::string text;
  for (const Cleaned::Entry& e : cleaned.removed)
    text += std::string(dry_run ? "would remove " : "removed ") + one_line(e.path) + ": " + e.why +
            ", " + mebibytes(e.bytes) + "\n";
  for (const Cleaned::Entry& e : cleaned.left)
    text += "left " + one_line(e.path) + ": " + one_line(e.why) + "\n";
  return text;
}

Result<int> run_gc(const Arguments& arguments) {
  std::string run, local_dir;
  CleanOptions options;
  std::optional<uint64_t> keep;
  OptionTable table("train-launch checkpoint gc");
  table.positional("RUN", &run);
  table.group("Options");
  table.flag("dry-run", &options.dry_run, "only say what would go");
  table.flag("set-aside", &options.set_aside, "also what runs have set aside (.bad, .aside)");
  table.optional_number("keep", &keep,
                        "also verified checkpoints beyond so many, but never the newest two");
  table.whole("keep-every", &options.keep_every, 0, INT64_MAX,
              "with --keep: multiples of so many steps stay; 0: none");
  table.text("local-dir", &local_dir, "checkpoint.local-dir of the run, to clean it too", false);
  table.flag("force", &options.force, "also what another host may be busy writing");
  if (auto end = read(table, arguments, "gc RUN [OPTION...]")) return *end;
  if (keep) options.keep = static_cast<int>(std::min<uint64_t>(*keep, 1'000'000'000));

  std::vector<std::string> places{run};
  auto dir = Directory::open(run);
  if (!dir) return forward(dir);
  auto locals = local_places(*dir, local_dir);
  if (!locals) return forward(locals);
  for (const LocalPlace& p : *locals) places.push_back(p.path);

  uint64_t bytes = 0, entries = 0;
  bool left = false;
  for (const std::string& place : places) {
    auto cleaned = clean(place, options);
    if (!cleaned) return forward(cleaned);
    print(cleaned_text(*cleaned, options.dry_run));
    for (const Cleaned::Entry& e : cleaned->removed) bytes += e.bytes;
    entries += cleaned->removed.size();
    left = left || !cleaned->left.empty();
  }
  print(std::string(options.dry_run ? "would free " : "freed ") + mebibytes(bytes) + " in " +
        (entries == 1 ? "1 entry" : std::to_string(entries) + " entries") + "\n");
  return left ? exit_code::failed : exit_code::done;
}

// As diff(1) has it, 2 is trouble of any kind.
Result<int> run_diff(const Arguments& arguments) {
  std::string first, second, slot;
  bool as_json = false;
  OptionTable table("train-launch checkpoint diff");
  table.positional("A", &first);
  table.positional("B", &second);
  table.group("Options");
  table.text("slot", &slot, "only this one: weight, m or v", false);
  add_format(table, as_json);
  if (auto end = read(table, arguments, "diff A B [OPTION...]")) return *end;
  auto a = find_checkpoint(first, std::nullopt);
  if (!a) return fail(a.error().what, exit_code::usage);
  auto b = find_checkpoint(second, std::nullopt);
  if (!b) return fail(b.error().what, exit_code::usage);
  auto comparison = [&] {
    Bar bar(a->path() + " and " + b->path());
    return compare(*a, *b, slot, bar.progress());
  }();
  if (!comparison) return fail(comparison.error().what, exit_code::usage);
  print(as_json ? comparison_json(a->path(), b->path(), *comparison)
                : comparison_text(*comparison));
  return comparison->equal() ? 0 : 1;
}

Result<int> run_export(const Arguments& arguments) {
  std::string place, output, format = "safetensors";
  std::optional<uint64_t> step;
  bool force = false;
  OptionTable table("train-launch checkpoint export");
  table.positional("CHECKPOINT", &place);
  table.group("Options");
  table.text("output", &output, "a new directory, for model.safetensors and config.json", false);
  table.optional_number("step", &step, "of the checkpoint; without it, the newest");
  table.choice<std::string>("format", &format, {{"safetensors", "safetensors"}}, "of the weights");
  table.flag("force", &force, "replace these files in a directory that exists");
  if (auto end = read(table, arguments, "export CHECKPOINT --output=DIR [OPTION...]")) return *end;
  if (output.empty()) return fail("--output: name a new directory", exit_code::usage);
  auto dir = find_checkpoint(place, step);
  if (!dir) return forward(dir);
  auto bytes = [&] {
    Bar bar(output);
    return export_weights(*dir, output, force, bar.progress());
  }();
  if (!bytes) return forward(bytes);
  print("exported " + one_line(dir->path()) + " to " + one_line(output) + ": " + mebibytes(*bytes) +
        "\n");
  return exit_code::done;
}

Result<int> run_import(const Arguments& arguments) {
  std::string input, run;
  std::optional<uint64_t> heads;
  OptionTable table("train-launch checkpoint import");
  table.positional("INPUT", &input);
  table.group("Options");
  table.text("output", &run, "run directory that begins with these weights", false);
  table.optional_number("heads", &heads, "attention heads, where no config.json has them");
  if (auto end = read(table, arguments, "import INPUT --output=RUN [OPTION...]")) return *end;
  if (run.empty()) return fail("--output: name a run directory", exit_code::usage);
  auto imported = [&] {
    Bar bar(input);
    return import_weights(input, run, heads, bar.progress());
  }();
  if (!imported) return forward(imported);
  for (const std::string& line : imported->warnings) say("warning: " + one_line(line));
  print("imported " + one_line(input) + " as " + one_line(imported->path) + "\n");
  return exit_code::done;
}

}  // namespace

Result<int> run_checkpoint(const Invocation& call) {
  const std::map<std::string, Result<int> (*)(const Arguments&)> commands{
      {"diff", run_diff}, {"export", run_export}, {"gc", run_gc},        {"import", run_import},
      {"list", run_list}, {"show", run_show},     {"verify", run_verify}};
  if (call.arguments.empty())
    return fail("no command; see train-launch checkpoint --help", exit_code::usage);
  const std::string& name = call.arguments.front();
  if (name == "--help" || name == "-h") {
    print(usage);
    return exit_code::done;
  }
  const auto command = commands.find(name);
  if (command == commands.end())
    return fail("no command '" + name + "'; see train-launch checkpoint --help", exit_code::usage);
  return command->second(Arguments(call.arguments.begin() + 1, call.arguments.end()));
}

}  // namespace trainlaunch
