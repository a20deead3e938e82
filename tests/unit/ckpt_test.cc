#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "ckpt/ckpt.h"
#include "ckpt/manifest.h"
#include "team.h"
#include "temporary.h"

using namespace trainlaunch;
using nlohmann::json;

namespace {

const TensorSizes sizes{{"wte", 5000}, {"blocks.0.bias", 7}, {"blocks.0.gain", 33}, {"ln", 1024}};
const std::vector<std::string> slots{"weight", "m", "v"};

float value(const std::string& tensor, const std::string& slot, int64_t i, uint64_t step) {
  return static_cast<float>(tensor.size() * 1000 + slot[0]) + static_cast<float>(i) * 0.25f +
         static_cast<float>(step) * 1e6f;
}

// The part of every tensor and slot that one of `size` ranks holds, cut at multiples of 16.
struct Holding {
  Holding(int rank, int size) {
    for (auto& [tensor, n] : sizes) {
      for (auto& slot : slots) {
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
        p.mem.as<float>()[i] = value(p.tensor, p.slot, p.offset + i, step);
  }
  int64_t wrong(uint64_t step) const {
    int64_t n = 0;
    for (const Piece& p : pieces)
      for (int64_t i = 0; i < p.length; ++i)
        n += p.mem.as<float>()[i] != value(p.tensor, p.slot, p.offset + i, step);
    return n;
  }
  std::vector<std::vector<float>> memory;
  std::vector<Piece> pieces;
};

State state_of(uint64_t step) {
  return {step, step * 32, step - 1, "abc", {{"model.width", "64"}, {"data.path", "caf\xe9"}}};
}

struct Host {
  std::unique_ptr<Device> device = make_host_device();
  std::unique_ptr<Stream> stream = std::move(*device->stream());
};

Status save_as(Control& control, const std::string& run, uint64_t step) {
  Host host;
  Holding mine(control.world().rank, control.world().size);
  mine.fill(step);
  auto writer = Writer::open(run, control);
  if (!writer) return forward(writer);
  return (*writer)->save(mine.pieces, sizes, state_of(step), *host.device, *host.stream);
}

Status save(const std::string& run, uint64_t step, int ranks = 1) {
  Status result;
  Team(ranks).run([&](Control& control) {
    auto s = save_as(control, run, step);
    if (control.world().rank == 0) result = s;
  });
  return result;
}

// What is wrong with the checkpoint that a world of one would take; empty when it is `step`.
std::string load(const std::string& run, uint64_t step,
                 std::vector<std::string>* passed_over = nullptr) {
  std::string problem;
  Team(1).run([&](Control& control) {
    auto agreed = Reader::agree(run, std::nullopt, control);
    if (!agreed) return void(problem = agreed.error().what);
    if (passed_over) *passed_over = agreed->passed_over;
    if (!agreed->reader) return void(problem = "there is none");
    Host host;
    Holding all(0, 1);
    auto read = agreed->reader->read(all.pieces, *host.device, *host.stream);
    if (!read) return void(problem = read.error().what);
    if (agreed->reader->state().step != step) problem = "another step";
    if (all.wrong(step) != 0) problem = "wrong values";
  });
  return problem;
}

std::string shard(const std::string& run, uint64_t step, int rank) {
  return run + "/step-00000000" + std::to_string(step) + "/" + shard_name(rank);
}
std::string manifest(const std::string& run, uint64_t step) {
  return run + "/step-00000000" + std::to_string(step) + "/MANIFEST.json";
}

std::vector<std::string> entries(const std::string& dir) {
  std::vector<std::string> names;
  for (auto& e : std::filesystem::directory_iterator(dir)) names.push_back(e.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// A program's exit status, or minus the signal that ended it.
int spawn(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    (void)!freopen("/dev/null", "w", stderr);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

std::string self() { return std::filesystem::read_symlink("/proc/self/exe"); }

// Runs a save of step 2 in another process, in which the n-th call of a kind is made to fail or to
// kill; strace then ends the same way. `reached`: there was an n-th call.
int save_under_strace(const std::string& run, const std::string& call, const std::string& what,
                      int n, bool& reached) {
  const std::string log = run + "/../strace";
  const int status = spawn({"strace", "-qq", "-o", log, "-e", "trace=" + call, "-e",
                            "inject=" + call + ":" + what + ":when=" + std::to_string(n), self(),
                            "--save", run, "2"});
  reached = status < 0 || read_file(log).find("(INJECTED)") != std::string::npos;
  return status;
}

bool strace_works() {
#ifdef __SANITIZE_ADDRESS__
  std::puts("skipped: the calls that the sanitizers make themselves would be hit");
  return false;
#endif
  static const bool works = [] {
    const bool ok = spawn({"strace", "-qq", "-o", "/dev/null", "-e", "trace=write", "-e",
                           "inject=write:retval=0", "true"}) == 0;
    if (!ok) std::puts("skipped: strace is not there or may not trace");
    return ok;
  }();
  return works;
}

}  // namespace

TEST_CASE("any number of ranks reads what any number wrote") {
  for (int writers = 1; writers <= 4; ++writers) {
    Temporary dir;
    const std::string run = dir / "new/run";
    Team(writers).run([&](Control& control) {
      Host host;
      Holding mine(control.world().rank, control.world().size);
      mine.fill(5);
      auto writer = Writer::open(run, control);
      REQUIRE(writer);
      REQUIRE((*writer)->save(mine.pieces, sizes, state_of(5), *host.device, *host.stream));
      auto done = (*writer)->poll();
      REQUIRE(done);
      REQUIRE(*done);
      CHECK((*done)->step == 5);
      CHECK((*done)->path == run + "/step-000000005");
      CHECK((*done)->bytes > 3 * 6064 * sizeof(float));
      CHECK(!(*writer)->poll());
    });
    struct stat st;
    REQUIRE(stat(run.c_str(), &st) == 0);
    CHECK((st.st_mode & 07777) == 0700);
    REQUIRE(stat(shard(run, 5, 0).c_str(), &st) == 0);
    CHECK((st.st_mode & 07777) == 0600);
    CHECK(entries(run) == std::vector<std::string>{"step-000000005"});

    for (int readers : {1, 2, 3, 5}) {
      Team(readers).run([&](Control& control) {
        Host host;
        auto agreed = Reader::agree(run, std::nullopt, control);
        REQUIRE(agreed);
        REQUIRE(agreed->reader);
        CHECK(agreed->passed_over.empty());
        const State& s = agreed->reader->state();
        CHECK(s.step == 5);
        CHECK(s.samples == 160);
        CHECK(s.updates == 4);
        CHECK(s.data_digest == "abc");
        CHECK(s.config.at("model.width") == "64");
        CHECK(agreed->reader->tensors() == sizes);
        Holding mine(control.world().rank, control.world().size);
        REQUIRE(agreed->reader->read(mine.pieces, *host.device, *host.stream));
        CHECK(mine.wrong(5) == 0);
        Holding all(0, 1);
        REQUIRE(agreed->reader->read(all.pieces, *host.device, *host.stream));
        CHECK(all.wrong(5) == 0);
      });
    }
  }
}

// The safetensors rules: 8 bytes of header length, a JSON object, and data that the tensors' ranges
// cover without a hole or an overlap.
TEST_CASE("shards are valid safetensors files") {
  Temporary dir;
  REQUIRE(save(dir / "run", 3, 2));
  std::set<std::string> names;
  for (int rank : {0, 1}) {
    const std::string bytes = read_file(shard(dir / "run", 3, rank));
    REQUIRE(bytes.size() > 8);
    uint64_t header = 0;
    for (int i = 7; i >= 0; --i) header = header << 8 | static_cast<uint8_t>(bytes[i]);
    REQUIRE(header <= bytes.size() - 8);
    CHECK((header + 8) % 64 == 0);
    CHECK(bytes[8] == '{');
    const json j = json::parse(bytes.substr(8, header));
    std::vector<std::pair<uint64_t, uint64_t>> ranges;
    for (auto& [name, t] : j.items()) {
      if (name == "__metadata__") continue;
      const uint64_t from = t["data_offsets"][0], to = t["data_offsets"][1];
      uint64_t elements = 1;
      for (uint64_t d : t["shape"]) elements *= d;
      CHECK(to - from == elements * (t["dtype"] == "F32" ? 4 : 1));
      ranges.push_back({from, to});
      if (name.starts_with(".pad")) continue;
      CHECK(t["dtype"] == "F32");
      CHECK(from % 64 == 0);
      names.insert(name);
      const size_t slash = name.rfind('/'), at = name.rfind('@');
      const std::string tensor = name.substr(0, slash),
                        slot = name.substr(slash + 1, at - slash - 1);
      const int64_t offset = std::stoll(name.substr(at + 1));
      int64_t wrong = 0;
      for (uint64_t i = 0; i < elements; ++i) {
        float x;
        std::memcpy(&x, bytes.data() + 8 + header + from + 4 * i, 4);
        wrong += x != value(tensor, slot, offset + static_cast<int64_t>(i), 3);
      }
      CHECK(wrong == 0);
    }
    std::sort(ranges.begin(), ranges.end());
    uint64_t end = 0;
    for (auto [from, to] : ranges) {
      CHECK(from == end);
      end = to;
    }
    CHECK(8 + header + end == bytes.size());
  }
  CHECK(names.contains("wte/weight@0"));
  CHECK(names.contains("wte/v@2496"));
}

TEST_CASE("a flipped byte is found and the file is named") {
  Temporary dir;
  REQUIRE(save(dir / "run", 4, 2));
  std::vector<std::string> files{shard(dir / "run", 4, 0), shard(dir / "run", 4, 1),
                                 manifest(dir / "run", 4)};
  for (const std::string& file : files) {
    const std::string good = read_file(file);
    for (size_t at = 0; at < good.size(); at += at < 1500 ? 13 : 797) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
      write_file(file, bad);
      const std::string problem = load(dir / "run", 4);
      if (problem.find(file) == std::string::npos) FAIL("byte " << at << ": " << problem);
    }
    write_file(file, good);
  }
  CHECK(load(dir / "run", 4) == "");
}

TEST_CASE("truncated, grown and missing files are found") {
  Temporary dir;
  REQUIRE(save(dir / "run", 4, 2));
  for (const std::string& file : {shard(dir / "run", 4, 1), manifest(dir / "run", 4)}) {
    const std::string good = read_file(file);
    for (size_t n : {size_t{0}, size_t{1}, size_t{45}, good.size() / 2, good.size() - 1}) {
      write_file(file, good.substr(0, n));
      CHECK(load(dir / "run", 4).find(file) != std::string::npos);
    }
    write_file(file, good + "x");
    CHECK(load(dir / "run", 4).find(file) != std::string::npos);
    std::filesystem::remove(file);
    CHECK(load(dir / "run", 4).find(file) != std::string::npos);
    std::filesystem::create_symlink("/dev/zero", file);
    CHECK(load(dir / "run", 4).find(file) != std::string::npos);
    std::filesystem::remove(file);
    write_file(file, good);
  }
  CHECK(load(dir / "run", 4) == "");
}

TEST_CASE("two shards exchanged are found") {
  Temporary dir;
  REQUIRE(save(dir / "run", 4, 2));
  const std::string a = read_file(shard(dir / "run", 4, 0)),
                    b = read_file(shard(dir / "run", 4, 1));
  write_file(shard(dir / "run", 4, 0), b);
  write_file(shard(dir / "run", 4, 1), a);
  CHECK(load(dir / "run", 4).find("damaged") != std::string::npos);
}

TEST_CASE("an unreadable newest checkpoint gives way to the next older") {
  Temporary dir;
  for (uint64_t step : {1, 2, 3}) REQUIRE(save(dir / "run", step));
  write_file(shard(dir / "run", 3, 0), "");
  std::vector<std::string> passed;
  CHECK(load(dir / "run", 2, &passed) == "");
  REQUIRE(passed.size() == 1);
  CHECK(passed[0].find("step 3") != std::string::npos);
  CHECK(passed[0].find(shard(dir / "run", 3, 0)) != std::string::npos);
  Team(1).run([&](Control& control) {
    auto fixed = Reader::agree(dir / "run", 3, control);
    REQUIRE(!fixed);
    CHECK(fixed.error().exit == exit_code::hopeless);
    auto other = Reader::agree(dir / "run", 7, control);
    REQUIRE(!other);
    CHECK(other.error().what.find("1, 2, 3") != std::string::npos);

    auto writer = Writer::open(dir / "run", control);
    REQUIRE(writer);
    auto moved = (*writer)->set_aside_after(2);
    REQUIRE(moved);
    CHECK(*moved == std::vector<std::string>{dir / "run/step-000000003.aside"});
  });
  CHECK(save(dir / "run", 3));
  CHECK(load(dir / "run", 3) == "");
}

TEST_CASE("checkpoints are set aside as often as a run goes back, newest first") {
  Temporary dir;
  const std::string run = dir / "run", aside = run + "/step-000000003.aside";
  REQUIRE(save(run, 1));
  for (const std::string& name : {aside, aside + ".1", aside + ".2"}) {
    for (uint64_t step : {2, 3}) REQUIRE(save(run, step));
    Team(1).run([&](Control& control) {
      auto writer = Writer::open(run, control);
      REQUIRE(writer);
      auto moved = (*writer)->set_aside_after(1);
      REQUIRE_MESSAGE(moved, (moved ? "" : moved.error().what));
      REQUIRE(moved->size() == 2);
      CHECK(moved->front() == name);
    });
    CHECK(*list_checkpoints(run) == std::vector<uint64_t>{1});
  }
}

TEST_CASE("a run directory has one writer at a time") {
  Temporary dir;
  const std::string run = dir / "run", saving = run + "/.step-000000002.0123.tmp";
  Team(1).run([&](Control& control) {
    auto first = Writer::open(run, control);
    REQUIRE(first);
    std::filesystem::create_directory(saving);
    auto second = Writer::open(run, control);
    REQUIRE(!second);
    CHECK(second.error().exit == exit_code::usage);
    CHECK(second.error().what.ends_with(
        run + " is in use by another job; wait for it or give another run-dir"));
    CHECK(std::filesystem::exists(saving));
    first->reset();
    CHECK(Writer::open(run, control));
    CHECK(!std::filesystem::exists(saving));
  });
}

TEST_CASE("damage that one rank sees is known to all") {
  Temporary dir;
  for (uint64_t step : {1, 2}) REQUIRE(save(dir / "run", step, 3));
  write_file(shard(dir / "run", 2, 2), "");
  Team(3).run([&](Control& control) {
    auto agreed = Reader::agree(dir / "run", std::nullopt, control);
    REQUIRE(agreed);
    CHECK(agreed->reader->state().step == 1);
    CHECK(agreed->passed_over.size() == 1);
  });
}

TEST_CASE("no usable checkpoint at all is an error, no checkpoint is not") {
  Temporary dir;
  CHECK(load(dir / "run", 1) == "there is none");
  REQUIRE(save(dir / "run", 1));
  write_file(manifest(dir / "run", 1), "{}");
  CHECK(load(dir / "run", 1).find("cannot be used") != std::string::npos);
}

TEST_CASE("a checkpoint is never replaced") {
  Temporary dir;
  REQUIRE(save(dir / "run", 1));
  const std::string before = read_file(manifest(dir / "run", 1));
  auto again = save(dir / "run", 1);
  REQUIRE(!again);
  CHECK(again.error().what.find("step-000000001") != std::string::npos);
  CHECK(read_file(manifest(dir / "run", 1)) == before);
  CHECK(entries(dir / "run") == std::vector<std::string>{"step-000000001"});
}

TEST_CASE("runs that do not cover the tensors are refused on all ranks") {
  Temporary dir;
  for (int fault : {0, 1, 2}) {
    Team(2).run([&](Control& control) {
      Host host;
      Holding mine(control.world().rank, 2);
      TensorSizes wanted = sizes;
      if (fault == 0 && control.world().rank == 1) mine.pieces.pop_back();
      if (fault == 1 && control.world().rank == 1) mine.pieces.push_back(mine.pieces[0]);
      if (fault == 2) wanted["missing"] = 1;
      auto writer = Writer::open(dir / "run", control);
      REQUIRE(writer);
      auto saved = (*writer)->save(mine.pieces, wanted, state_of(1), *host.device, *host.stream);
      REQUIRE(!saved);
      CHECK(saved.error().what.find("exactly once") != std::string::npos);
      CHECK(!(*writer)->poll());
    });
    CHECK(entries(dir / "run").empty());
  }
}

// A device that fails: what was enqueued turns out to have gone wrong.
class BrokenStream final : public Stream {
 public:
  Event record() override { return Event(std::make_shared<Broken>()); }
  void wait(const Event&) override {}
  void* native() override { return nullptr; }

 private:
  struct Broken final : Event::Impl {
    Result<bool> done() override { return fail("the device is gone"); }
    void* native() override { return nullptr; }
  };
};

TEST_CASE("a rank that cannot write fails the save on all ranks and leaves nothing") {
  Temporary dir;
  REQUIRE(save(dir / "run", 1, 3));
  Team(3).run([&](Control& control) {
    Host host;
    BrokenStream broken;
    Holding mine(control.world().rank, 3);
    auto writer = Writer::open(dir / "run", control);
    REQUIRE(writer);
    Stream& stream = control.world().rank == 1 ? static_cast<Stream&>(broken) : *host.stream;
    auto saved = (*writer)->save(mine.pieces, sizes, state_of(2), *host.device, stream);
    REQUIRE(!saved);
    CHECK(saved.error().what == "checkpoint of step 2 failed: rank 1 (here): the device is gone");
    CHECK(!(*writer)->poll());
    // The next one is as good as any.
    mine.fill(3);
    CHECK((*writer)->save(mine.pieces, sizes, state_of(3), *host.device, *host.stream));
  });
  CHECK(entries(dir / "run") == std::vector<std::string>{"step-000000001", "step-000000003"});
  CHECK(load(dir / "run", 3) == "");
}

TEST_CASE("retention keeps the newest") {
  Temporary dir;
  for (uint64_t step : {1, 2, 3, 4}) REQUIRE(save(dir / "run", step));
  Team(2).run([&](Control& control) {
    auto writer = Writer::open(dir / "run", control);
    REQUIRE(writer);
    CHECK((*writer)->retain(0));
    CHECK(list_checkpoints(dir / "run")->size() == 4);
  });
  Team(2).run([&](Control& control) {
    auto writer = Writer::open(dir / "run", control);
    REQUIRE((*writer)->retain(2));
  });
  CHECK(entries(dir / "run") == std::vector<std::string>{"step-000000003", "step-000000004"});
}

TEST_CASE("leftovers of earlier attempts are removed, nothing else is") {
  Temporary dir;
  REQUIRE(save(dir / "run", 1));
  std::filesystem::create_directory(dir / "run/.step-000000002.0123.tmp");
  write_file(dir / "run/.step-000000002.0123.tmp/shard-00000.safetensors", "x");
  write_file(dir / "run/metrics.jsonl", "{}\n");
  REQUIRE(save(dir / "run", 2));
  CHECK(entries(dir / "run") ==
        std::vector<std::string>{"metrics.jsonl", "step-000000001", "step-000000002"});
}

TEST_CASE("a leftover that cannot be removed is a warning") {
  Temporary dir;
  const std::string leftover = dir / "run/.step-000000002.0123.tmp";
  std::filesystem::create_directories(leftover + "/somebody's");
  std::filesystem::create_directory(dir / "run/.step-000000003.0123.tmp");
  Team(2).run([&](Control& control) {
    auto writer = Writer::open(dir / "run", control);
    REQUIRE(writer);
    const auto& warnings = (*writer)->warnings();
    REQUIRE(warnings.size() == (control.world().rank == 0 ? 1 : 0));
    for (const std::string& w : warnings) CHECK(w.find(leftover) != std::string::npos);
  });
  CHECK(entries(dir / "run") == std::vector<std::string>{".step-000000002.0123.tmp"});
}

TEST_CASE("a run directory behind a link is refused") {
  Temporary dir;
  std::filesystem::create_directory(dir / "real");
  std::filesystem::create_directory_symlink(dir / "real", dir / "run");
  for (const char* name : {"run", "run/"}) {
    auto saved = save(dir / name, 1);
    REQUIRE(!saved);
    CHECK(saved.error().what.find("symbolic link") != std::string::npos);
    CHECK(saved.error().exit == exit_code::usage);
  }
  CHECK(entries(dir / "real").empty());
}

TEST_CASE("other names are no checkpoints") {
  Temporary dir;
  for (const char* name : {"step-1", "step-0000000001", "step-00000001x", "step-000000001.aside",
                           ".step-000000001.ab.tmp"})
    std::filesystem::create_directory(dir / name);
  CHECK(list_checkpoints(dir.path())->empty());
  std::filesystem::create_directory(dir / "step-000000012");
  std::filesystem::create_directory(dir / "step-1000000000");
  CHECK(*list_checkpoints(dir.path()) == std::vector<uint64_t>{12, 1000000000});
  CHECK(list_checkpoints(dir / "missing")->empty());
}

TEST_CASE("kill -9 at any call of a save leaves the older checkpoint or both") {
  if (!strace_works()) return;
  int killed = 0;
  for (const char* call : {"mkdirat", "openat", "write", "fsync", "close", "renameat2"}) {
    for (int n = 1;; ++n) {
      REQUIRE(n < 1000);
      Temporary dir;
      REQUIRE(save(dir / "run", 1));
      bool reached = false;
      const int status = save_under_strace(dir / "run", call, "signal=KILL", n, reached);
      auto steps = list_checkpoints(dir / "run");
      REQUIRE(steps);
      REQUIRE(!steps->empty());
      CHECK(load(dir / "run", steps->back()) == "");
      if (!reached) {
        CHECK(status == 0);
        CHECK(steps->back() == 2);
        break;
      }
      CHECK(status == -SIGKILL);
      ++killed;
      // The next attempt cleans up.
      REQUIRE(save(dir / "run", 3));
      for (const std::string& name : entries(dir / "run")) CHECK(name.starts_with("step-"));
    }
  }
  CHECK(killed > 15);
}

TEST_CASE("a call that fails is reported and leaves nothing behind") {
  if (!strace_works()) return;
  int failed = 0;
  for (const char* call : {"mkdirat", "write", "fsync", "close", "renameat2", "fstatfs"}) {
    const std::string error = call == std::string("write") ? "error=ENOSPC" : "error=EIO";
    bool reached = true;
    for (int n = 1; reached; ++n) {
      REQUIRE(n < 1000);
      Temporary dir;
      REQUIRE(save(dir / "run", 1));
      const int status = save_under_strace(dir / "run", call, error, n, reached);
      if (status == 127) continue;  // the loader of the program was hit
      if (status == 0) {            // a call whose result is of no consequence
        CHECK(load(dir / "run", 2) == "");
        continue;
      }
      CHECK(status == 3);
      ++failed;
      const auto names = entries(dir / "run");
      CHECK(names.front() == "step-000000001");
      for (const std::string& name : names) CHECK(name.starts_with("step-"));
      CHECK(load(dir / "run", names.size()) == "");
    }
  }
  CHECK(failed > 10);
}

TEST_CASE("a full disk is said before and leaves the older checkpoint") {
  Temporary dir;
  std::filesystem::create_directory(dir / "disk");
  const std::string disk = dir / "disk";
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1200k,nr_inodes=6") != 0) {
    std::puts("skipped: no right to mount a small disk");
    return;
  }
  auto first = save(disk + "/run", 1);
  auto second = save(disk + "/run", 2);
  const auto names = entries(disk + "/run");
  const std::string loaded = load(disk + "/run", 1);
  umount(disk.c_str());
  REQUIRE(first);
  REQUIRE(!second);
  CHECK(second.error().what.find("step 2") != std::string::npos);
  CHECK(names == std::vector<std::string>{"step-000000001"});
  CHECK(loaded == "");
}

// A manifest cut anywhere, with a digest that is right for what is left, is refused and never
// believed: digests are no protection from a writer that was wrong.
TEST_CASE("no piece of a manifest is taken for one") {
  Temporary dir;
  REQUIRE(save(dir / "run", 1));
  const std::string good = read_file(manifest(dir / "run", 1));
  const std::string body = good.substr(good.find("\",") + 2);
  auto sealed = [](const std::string& rest) {
    Digest digest;
    digest.update(rest.data(), rest.size());
    return "{\"digest\":\"" + digest.hex() + "\"," + rest;
  };
  CHECK(sealed(body) == good);
  for (size_t n = 0; n + 1 < body.size(); ++n) {
    auto cut = parse_manifest(sealed(body.substr(0, n)), "x");
    if (n + 2 >= body.size()) continue;
    CHECK(!cut);
  }
  auto with = [&](auto change) {
    json j = json::parse(good);
    j.erase("digest");
    change(j);
    auto r = parse_manifest(sealed(j.dump().substr(1)), "x");
    CHECK(!r);
    return r ? "" : r.error().what;
  };
  CHECK(with([](json& j) { j["format"] = 2; }).find("format 2") != std::string::npos);
  CHECK(with([](json& j) { j["format"] = "1"; }) != "");
  CHECK(with([](json& j) { j.erase("state"); }).find("state") != std::string::npos);
  CHECK(with([](json& j) { j["state"]["step"] = -1; }) != "");
  CHECK(with([](json& j) { j["state"]["config"]["a"] = 1; }) != "");
  CHECK(with([](json& j) { j["tensors"]["wte"] = 1e300; }) != "");
  CHECK(with([](json& j) { j["tensors"]["wte"] = ~uint64_t{0}; }) != "");
  CHECK(with([](json& j) { j["tensors"]["more"] = 5; }).find("more") != std::string::npos);
  CHECK(with([](json& j) { j["files"][0]["name"] = "../../etc/passwd"; }) != "");
  CHECK(with([](json& j) { j["files"] = 3; }) != "");
  CHECK(with([](json& j) { j["runs"].erase(0); }).find("exactly once") != std::string::npos);
  CHECK(with([](json& j) { j["runs"].push_back(j["runs"][0]); }) != "");
  CHECK(with([](json& j) { j["runs"][0][3] = ~uint64_t{0}; }) != "");
  CHECK(with([](json& j) { j["runs"][0][4] = 1; }).find("no file") != std::string::npos);
  CHECK(with([](json& j) { j["runs"][0][5] = uint64_t{1} << 40; }).find("within") !=
        std::string::npos);
  CHECK(with([](json& j) { j["runs"][0][5] = 3; }) != "");
  CHECK(with([](json& j) { j["runs"][0] = json::array({"wte"}); }) != "");
}

int main(int argc, char** argv) {
  // The helper process of the tests that interrupt a save.
  if (argc == 4 && std::string(argv[1]) == "--save") {
    Status saved = save(argv[2], std::stoull(argv[3]));
    return saved ? 0 : 3;
  }
  return doctest::Context(argc, argv).run();
}
