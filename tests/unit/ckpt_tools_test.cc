// What the tools say of checkpoints: every damage is found, and nothing that is needed goes.
#include <doctest/doctest.h>
#include <utime.h>

#include <random>

#include "ckpt/catalog.h"
#include "ckpt/cleanup.h"
#include "ckpt/ownership.h"
#include "ckpt/verify.h"
#include "ckpt_testing.h"

using namespace trainlaunch;

namespace {

// So small that every byte of it can be tried: two ranks, each with some of two tensors.
const TensorSizes tiny{{"w", 40}, {"b", 3}};

void save_tiny(const std::string& run, uint64_t step) {
  Team(2).run([&](Control& control) {
    auto writer = open_writer(run, control, {0, 0, 0, true});  // keeps all
    REQUIRE(writer);
    Holding mine(control.world().rank, 2, tiny);
    mine.fill(step);
    CHECK(save_now(**writer, mine.pieces, step, tiny).status);
  });
}

Verdict verify(const std::string& path) {
  auto dir = Directory::open(path);
  REQUIRE(dir);
  return verify_checkpoint(*dir, {});
}

std::string damage(const std::string& path) {
  const Verdict v = verify(path);
  return v.damage.empty() ? "" : v.damage.front();
}

// How many of these single bits, flipped, are not found, or not said with the file's name.
int missed(const std::string& checkpoint, const std::string& file,
           const std::vector<size_t>& bits) {
  const std::string good = read_file(file);
  int n = 0;
  for (const size_t bit : bits) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    write_file(file, bad);
    n += damage(checkpoint).find(file) == std::string::npos;
  }
  write_file(file, good);
  return n;
}

// One bit of every byte, and all of the first ones.
std::vector<size_t> bits_of(size_t bytes) {
  std::vector<size_t> bits;
  for (size_t at = 0; at < bytes; ++at)
    for (size_t bit = 0; bit < 8; ++bit)
      if (at < 50 || bit == at * 5 % 8) bits.push_back(at * 8 + bit);
  return bits;
}

std::vector<std::string> names(const std::vector<Cleaned::Entry>& entries) {
  std::vector<std::string> all;
  for (const auto& e : entries) all.push_back(std::filesystem::path(e.path).filename());
  std::sort(all.begin(), all.end());
  return all;
}

void make_old(const std::string& path) {
  const utimbuf old{1'000'000'000, 1'000'000'000};
  if (std::filesystem::is_directory(path))
    for (auto& e : std::filesystem::directory_iterator(path)) utime(e.path().c_str(), &old);
  utime(path.c_str(), &old);
}

}  // namespace

TEST_CASE("verify finds flipped bits in every byte of a checkpoint, and names the file") {
  Temporary dir;
  save_tiny(dir / "run", 4);
  const std::string checkpoint = step_path(dir / "run", 4);
  REQUIRE(damage(checkpoint) == "");
  CHECK(verify(checkpoint).files == 2);
  for (const char* name :
       {"MANIFEST.json", "VERIFIED", "shard-00000.safetensors", "shard-00001.safetensors"}) {
    const std::string file = checkpoint + "/" + name;
    const size_t bytes = read_file(file).size();
    CAPTURE(file);
    CHECK(missed(checkpoint, file, bits_of(bytes)) == 0);
  }
  CHECK(damage(checkpoint) == "");
}

TEST_CASE("verify finds flipped bits in a payload of many chunks, and says which tensor") {
  Temporary dir;
  constexpr int64_t scale = 300;  // 18 MB of wte: five chunks
  const TensorSizes sizes = known_sizes(scale);
  Team(1).run([&](Control& control) {
    auto writer = open_writer(dir / "run", control);
    REQUIRE(writer);
    Holding all(0, 1, sizes);
    all.fill(3);
    CHECK(save_now(**writer, all.pieces, 3, sizes).status);
  });
  const std::string checkpoint = step_path(dir / "run", 3), file = shard(dir / "run", 3, 0);
  auto manifest = read_manifest(*Directory::open(checkpoint));
  REQUIRE(manifest);
  REQUIRE(manifest->files[0].digests.size() >= 4);
  const std::string good = read_file(file);
  std::mt19937_64 random(7);
  for (int i = 0; i < 12; ++i) {
    const size_t at = random() % good.size();
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
    write_file(file, bad);
    const std::string said = damage(checkpoint);
    CAPTURE(said);
    CHECK(said.find(file) != std::string::npos);
    const size_t chunk = at / manifest->files[0].chunk * manifest->files[0].chunk;
    CHECK(said.find("bytes " + std::to_string(chunk) + " to ") != std::string::npos);
    for (const Run& r : manifest->runs)
      if (r.length > 100000 && at >= r.position &&
          at < r.position + static_cast<uint64_t>(r.length) * 4)
        CHECK(said.find(r.tensor + "/" + r.slot + " elements") != std::string::npos);
  }
  write_file(file, good);
  uint64_t last = 0, whole = 0;
  auto opened = Directory::open(checkpoint);
  (void)verify_checkpoint(*opened, [&](uint64_t done, uint64_t all) {
    CHECK(done > last);
    last = done;
    whole = all;
  });
  CHECK(last == good.size());
  CHECK(whole == good.size());
}

TEST_CASE("verify finds what is missing, cut, grown, strange or of another step") {
  Temporary dir;
  save_tiny(dir / "run", 4);
  const std::string checkpoint = step_path(dir / "run", 4), file = shard(dir / "run", 4, 1);
  const std::string good = read_file(file);
  for (const std::string& bad : {std::string(), good.substr(0, good.size() - 1), good + "x"}) {
    write_file(file, bad);
    CHECK(damage(checkpoint).find(file) != std::string::npos);
  }
  std::filesystem::remove(file);
  CHECK(damage(checkpoint).find(file) != std::string::npos);
  std::filesystem::create_symlink("/dev/zero", file);
  CHECK(damage(checkpoint).find(file) != std::string::npos);
  std::filesystem::remove(file);
  write_file(file, good);
  write_file(checkpoint + "/more", "x");
  CHECK(damage(checkpoint).find("more") != std::string::npos);
  std::filesystem::remove(checkpoint + "/more");
  std::filesystem::rename(checkpoint, step_path(dir / "run", 5));
  CHECK(damage(step_path(dir / "run", 5)).find("of step 4") != std::string::npos);
  std::filesystem::rename(step_path(dir / "run", 5), checkpoint);
  // A crash while the mark was made says nothing against the checkpoint.
  const std::string mark = read_file(checkpoint + "/VERIFIED");
  write_file(checkpoint + "/VERIFIED", mark.substr(0, 7));
  CHECK(damage(checkpoint) == "");
}

TEST_CASE("the catalog tells everything in a run directory apart") {
  Temporary dir;
  const std::string run = dir / "run";
  for (uint64_t step : {1, 2, 3, 4, 5, 6}) save_tiny(run, step);
  std::filesystem::rename(step_path(run, 1), step_path(run, 1) + ".bad");
  write_file(step_path(run, 1) + ".bad/WHY", "a reason\nand more\n");
  std::filesystem::rename(step_path(run, 2), step_path(run, 2) + ".aside.3");
  std::filesystem::remove(step_path(run, 3) + "/VERIFIED");
  std::filesystem::remove(shard(run, 4, 1));
  write_file(manifest(run, 5), "x");
  for (const char* name : {".step-000000007.0123.tmp", ".trash.0123", "notes", "step-12"})
    std::filesystem::create_directory(run + "/" + name);
  write_file(run + "/.step-000000007.0123.tmp/part", std::string(123, 'x'));

  auto found = catalog(run, "");
  REQUIRE(found);
  std::vector<std::pair<std::string, std::string>> states;
  for (const Found& f : *found)
    states.emplace_back(f.step ? std::to_string(*f.step) : "", word_of(f.standing));
  CHECK(states == std::vector<std::pair<std::string, std::string>>{{"1", "bad"},
                                                                   {"2", "aside"},
                                                                   {"3", "committed"},
                                                                   {"4", "damaged"},
                                                                   {"5", "damaged"},
                                                                   {"6", "verified"},
                                                                   {"7", "unfinished"},
                                                                   {"", "trash"}});
  CHECK((*found)[0].why == "a reason");
  CHECK((*found)[3].why.find("shard-00001") != std::string::npos);
  CHECK((*found)[6].bytes == 123);
  const auto six = read_manifest(*Directory::open(step_path(run, 6)));
  REQUIRE(six);
  CHECK((*found)[5].bytes >= six->files[0].bytes + six->files[1].bytes);
}

TEST_CASE("a checkpoint is found by its own directory, by its step, or as the newest") {
  Temporary dir;
  const std::string run = dir / "run";
  for (uint64_t step : {1, 2}) save_tiny(run, step);
  auto path = [](Result<Directory> d) { return d ? d->path() : "error: " + d.error().what; };
  CHECK(path(find_checkpoint(run, std::nullopt)) == step_path(run, 2));
  CHECK(path(find_checkpoint(run, 1)) == step_path(run, 1));
  CHECK(path(find_checkpoint(step_path(run, 1), std::nullopt)) == step_path(run, 1));
  CHECK(path(find_checkpoint(step_path(run, 1) + "/", 1)) == step_path(run, 1));
  auto refused = [](const Result<Directory>& d) {
    return !d && d.error().exit == exit_code::usage;
  };
  CHECK(refused(find_checkpoint(run, 3)));
  CHECK(refused(find_checkpoint(step_path(run, 1), 2)));
  CHECK(refused(find_checkpoint(dir / "none", std::nullopt)));
  CHECK(refused(find_checkpoint(dir.path(), std::nullopt)));
  std::filesystem::create_directory_symlink(step_path(run, 1), dir / "link");
  CHECK(!find_checkpoint(dir / "link", std::nullopt));
}

TEST_CASE("gc removes litter and leaves what is committed, set aside, or not its own") {
  Temporary dir;
  const std::string run = dir / "run", elsewhere = dir / "elsewhere";
  for (uint64_t step : {1, 2, 3, 4}) save_tiny(run, step);
  std::filesystem::rename(step_path(run, 1), step_path(run, 1) + ".bad");
  std::filesystem::remove(step_path(run, 2) + "/VERIFIED");
  for (const char* name : {".step-000000007.0123.tmp", ".trash.0123", "notes"})
    std::filesystem::create_directory(run + "/" + name);
  write_file(run + "/.step-000000007.0123.tmp/part", std::string(123, 'x'));
  write_file(run + "/.run.starts.tmp", "x");
  std::filesystem::create_directory(elsewhere);
  write_file(elsewhere + "/precious", "x");
  std::filesystem::create_directory_symlink(elsewhere, run + "/.trash.link");
  std::filesystem::create_symlink(elsewhere + "/precious", run + "/.trash.0123/link");
  for (const char* name : {"/.step-000000007.0123.tmp", "/.trash.0123", "/.run.starts.tmp"})
    make_old(run + name);

  const auto before = entries(run);
  auto dry = clean(run, {.dry_run = true});
  REQUIRE(dry);
  CHECK(entries(run) == before);
  auto done = clean(run, {});
  REQUIRE(done);
  const std::vector<std::string> litter{".run.starts.tmp", ".step-000000007.0123.tmp",
                                        ".trash.0123"};
  CHECK(names(dry->removed) == litter);
  CHECK(names(done->removed) == litter);
  CHECK(names(done->left) == std::vector<std::string>{".trash.link"});
  CHECK(read_file(elsewhere + "/precious") == "x");
  for (const char* name : {"step-000000001.bad", "step-000000002", "step-000000003",
                           "step-000000004", "notes", ".trash.link"})
    CHECK(std::filesystem::is_directory(run + "/" + name));

  // Only when told, and then by the rule of retention: step 2 has not been verified.
  for (uint64_t step : {5, 6, 7}) save_tiny(run, step);
  auto kept = clean(run, {.set_aside = true, .keep = 1, .keep_every = 5});
  REQUIRE(kept);
  CHECK(names(kept->removed) ==
        std::vector<std::string>{"step-000000001.bad", "step-000000003", "step-000000004"});
  CHECK(damage(step_path(run, 7)) == "");
}

TEST_CASE("a node's part of a run is listed and retained, though other nodes have the rest") {
  Temporary dir;
  const std::string id = "0123456789abcdef", local = dir / (id + ".n1");
  for (uint64_t step : {1, 2, 3}) {
    save_tiny(local, step);
    std::filesystem::remove(shard(local, step, 0));
  }
  auto found = catalog(local, "");
  REQUIRE(found);
  REQUIRE(found->size() == 3);
  for (const Found& f : *found) {
    CHECK(f.standing == Standing::verified);
    CHECK(f.level == Level::local);
    CHECK(f.node == "n1");
  }
  auto kept = clean(local, {.keep = 2});
  REQUIRE(kept);
  CHECK(names(kept->removed) == std::vector<std::string>{"step-000000001"});
}

TEST_CASE("gc keeps off a run in use, and off what may be another host's save") {
  Temporary dir;
  const std::string run = dir / "run";
  save_tiny(run, 1);
  const std::string saving = run + "/.step-000000002.0123.tmp";
  std::filesystem::create_directory(saving);
  {
    auto opened = Directory::open(run);
    std::vector<std::string> warnings;
    auto owner = Ownership::take(*opened, "job 7, process 1 on elsewhere", warnings);
    REQUIRE(owner);
    std::filesystem::create_directory(saving);
    auto busy = clean(run, {});
    REQUIRE(!busy);
    CHECK(busy.error().what.find("in use by job 7") != std::string::npos);
    CHECK(std::filesystem::exists(saving));
  }
  // The lock is free, but the job that had it last ran on a host whose locks may not be seen here.
  write_file(run + "/.run.starts.tmp", "x");
  auto unsure = clean(run, {});
  REQUIRE(unsure);
  CHECK(unsure->removed.empty());
  REQUIRE(unsure->left.size() == 2);
  for (const auto& left : unsure->left) CHECK(left.why.find("job 7") != std::string::npos);
  make_old(saving);
  make_old(run + "/.run.starts.tmp");
  auto sure = clean(run, {});
  REQUIRE(sure);
  CHECK(names(sure->removed) ==
        std::vector<std::string>{".run.starts.tmp", ".step-000000002.0123.tmp"});
  std::filesystem::create_directory(saving);
  CHECK(clean(run, {.force = true})->removed.size() == 1);

  std::filesystem::create_directory(dir / "other");
  auto other = clean(dir / "other", {});
  CHECK((!other && other.error().exit == exit_code::usage));
  CHECK(entries(dir / "other").empty());
}
