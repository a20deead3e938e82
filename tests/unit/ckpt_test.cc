#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "ckpt_testing.h"

using namespace trainlaunch;
using nlohmann::json;

TEST_CASE("any number of ranks reads what any number wrote") {
  for (int writers = 1; writers <= 4; ++writers) {
    Temporary dir;
    const std::string run = dir / "new/run";
    Team(writers).run([&](Control& control) {
      Holding mine(control.world().rank, control.world().size);
      mine.fill(5);
      auto writer = open_writer(run, control);
      REQUIRE(writer);
      const Outcome done = save_now(**writer, mine.pieces, 5);
      REQUIRE_MESSAGE(done.status, (done.status ? "" : done.status.error().what));
      CHECK(done.step == 5);
      CHECK(done.path == run + "/step-000000005");
      CHECK(done.bytes > 3 * 6064 * sizeof(float));
      CHECK(!done.succeeded_by_another);
      CHECK(!(*writer)->poll());
      CHECK((*writer)->warnings().empty());
    });
    struct stat st;
    REQUIRE(stat(run.c_str(), &st) == 0);
    CHECK((st.st_mode & 07777) == 0700);
    REQUIRE(stat(shard(run, 5, 0).c_str(), &st) == 0);
    CHECK((st.st_mode & 07777) == 0600);
    CHECK(entries(run) == std::vector<std::string>{".attempt-1.1", "run.lock", "step-000000005"});
    std::string digest = read_file(step_path(run, 5) + "/VERIFIED");
    CHECK(digest == Reader::open(run, 5).value()->digest() + "\n");

    for (int readers : {1, 2, 3, 5}) {
      Team(readers).run([&](Control& control) {
        auto agreed = agree(run, std::nullopt, control);
        REQUIRE(agreed);
        REQUIRE(agreed->reader);
        CHECK(agreed->passed_over.empty());
        CHECK(agreed->reader->state().config.at("model.width") == "64");
        CHECK(agreed->reader->tensors() == known_sizes());
        CHECK(compare_known(*agreed->reader, control.world(), 5) == "");
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
        wrong += x != known_value(tensor, slot, offset + static_cast<int64_t>(i), 3);
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
    auto fixed = agree(dir / "run", 3, control);
    REQUIRE(!fixed);
    CHECK(fixed.error().exit == exit_code::hopeless);
    auto other = agree(dir / "run", 7, control);
    REQUIRE(!other);
    CHECK(other.error().what.find("1, 2, 3") != std::string::npos);

    auto writer = open_writer(dir / "run", control);
    REQUIRE(writer);
    const PassedOver bad{Level::shared, 3, "its reason"};
    auto moved = (*writer)->go_on_from(2, {&bad, 1});
    REQUIRE(moved);
    CHECK(*moved == std::vector<std::string>{"set aside: " + dir / "run/step-000000003.bad"});
    CHECK(read_file(dir / "run/step-000000003.bad/WHY") == "its reason\n");
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
      auto writer = open_writer(run, control);
      REQUIRE(writer);
      auto moved = (*writer)->go_on_from(1, {});
      REQUIRE_MESSAGE(moved, (moved ? "" : moved.error().what));
      REQUIRE(moved->size() == 2);
      CHECK(moved->front() == "set aside: " + name);
    });
    CHECK(*list_checkpoints(run) == std::vector<uint64_t>{1});
  }
}

TEST_CASE("damage that one rank sees is known to all") {
  Temporary dir;
  for (uint64_t step : {1, 2}) REQUIRE(save(dir / "run", step, 3));
  write_file(shard(dir / "run", 2, 2), "");
  Team(3).run([&](Control& control) {
    auto agreed = agree(dir / "run", std::nullopt, control);
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
  CHECK(*list_checkpoints(dir / "run") == std::vector<uint64_t>{1});
  CHECK(litter(dir / "run").empty());
}

TEST_CASE("runs that do not cover the tensors are refused on all ranks") {
  Temporary dir;
  for (int fault : {0, 1, 2}) {
    Team(2).run([&](Control& control) {
      Holding mine(control.world().rank, 2);
      TensorSizes wanted = known_sizes();
      if (fault == 0 && control.world().rank == 1) mine.pieces.pop_back();
      if (fault == 1 && control.world().rank == 1) mine.pieces.push_back(mine.pieces[0]);
      if (fault == 2) wanted["missing"] = 1;
      auto writer = open_writer(dir / "run", control);
      REQUIRE(writer);
      const Status saved = save_now(**writer, mine.pieces, 1, wanted).status;
      REQUIRE(!saved);
      CHECK(saved.error().what.find("exactly once") != std::string::npos);
      CHECK(!(*writer)->poll());
    });
    CHECK(list_checkpoints(dir / "run")->empty());
    CHECK(litter(dir / "run").empty());
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
    auto writer = open_writer(dir / "run", control);
    REQUIRE(writer);
    Stream& stream = control.world().rank == 1 ? static_cast<Stream&>(broken) : *host.stream;
    (*writer)->save(mine.pieces, known_sizes(), known_state(2), {}, *host.device, stream);
    (*writer)->wait();
    const auto saved = (*writer)->poll();
    REQUIRE(saved);
    REQUIRE(!saved->status);
    CHECK(saved->status.error().what ==
          "checkpoint of step 2 failed: rank 1 (here): the device is gone");
    CHECK(!(*writer)->poll());
    // The next one is as good as any.
    CHECK(save_known(**writer, control.world(), 3));
  });
  CHECK(*list_checkpoints(dir / "run") == std::vector<uint64_t>{1, 3});
  CHECK(litter(dir / "run").empty());
  CHECK(load(dir / "run", 3) == "");
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
