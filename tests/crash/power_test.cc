// The power goes while a checkpoint is saved: a file system on a loop device stops at once, and is
// mounted again as after a reboot.
#include <doctest/doctest.h>
#include <sched.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>

#include "scene.h"
#include "spawn.h"

using namespace trainlaunch;
using namespace trainlaunch::crash;

namespace {

// Mounts that go with this process, however it ends.
bool private_mounts() {
  static const bool mine =
      unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  return mine;
}

// An ext4 file system in a file; ext4's helpers for programs that do not sync are off.
class Disk {
 public:
  Disk(const std::string& image, const std::string& at) : image_(image), at_(at) {
    std::filesystem::create_directories(at);
  }
  ~Disk() { off(); }
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  bool make() const {
    return spawn({"mkfs.ext4", "-q", "-F", "-b", "1024", "-N", "256", "-J", "size=1", "-E",
                  "lazy_itable_init=0,lazy_journal_init=0", image_, "7m"}) == 0;
  }
  bool on() {
    mounted_ = spawn({"mount", "-t", "ext4", "-o", "loop,noatime,noauto_da_alloc,commit=900",
                      image_, at_}) == 0;
    return mounted_;
  }
  void off() {
    if (mounted_) umount2(at_.c_str(), 0);
    mounted_ = false;
  }

 private:
  std::string image_, at_;
  bool mounted_ = false;
};

// Why no power can be cut here; empty when it can.
std::string why_not(const std::string& dir) {
  if (!private_mounts()) return "no right to mount (no mount namespace)";
  Disk disk(dir + "/try.img", dir + "/try");
  if (!disk.make()) return "mkfs.ext4 is missing";
  if (!disk.on()) return "no loop device can be mounted";
  disk.off();
  return "";
}

void cut_everywhere(Tried& tried, const Scene& scene, uint32_t phase) {
  Temporary dir(in_memory());
  const std::string image = dir / "disk.img", pristine = dir / "pristine.img", at = dir / "disk",
                    root = at + "/now";
  Disk disk(image, at);
  REQUIRE(disk.make());
  REQUIRE(disk.on());
  scene.make(root);
  disk.off();
  std::filesystem::rename(image, pristine);
  auto again = [&] {
    disk.off();
    std::filesystem::copy_file(pristine, image, std::filesystem::copy_options::overwrite_existing);
    REQUIRE(disk.on());
    return scene.job(root);
  };
  const auto calls = undisturbed(again());
  for (int rank = 0; rank < scene.ranks(); ++rank) {
    const auto& list = calls[static_cast<size_t>(rank)];
    for (uint32_t n = 1; n <= list.size(); ++n) {
      if (!chosen(n, phase + static_cast<uint32_t>(rank)) || repeats(list, n)) continue;
      const Job job = again();
      SharedSheet sheet;
      std::string wrong;
      if (run_job(job, {Effect::power, rank, n, 0}, *sheet) != End::killed) wrong = "no power cut";
      disk.off();
      if (!disk.on()) wrong = "the file system cannot be mounted again";
      if (wrong.empty())
        wrong = judge(job, std::max(scene.durable(), sheet->last_durable()), {1}, scene.bad());
      tried(describe(scene, rank, n, list[n - 1]), wrong);
    }
  }
}

}  // namespace

TEST_CASE("a loss of power at any call loses nothing that was said to be durable") {
  Temporary dir(in_memory());
  if (const std::string why = why_not(dir.path()); !why.empty()) {
    std::printf("skipped: %s\n", why.c_str());
    return;
  }
  Tried tried("a loss of power");
  cut_everywhere(tried, next, 0);
  cut_everywhere(tried, first, 1);
  if (stride() == 1) cut_everywhere(tried, damaged, 2);
  if (everything()) cut_everywhere(tried, next_of_two, 0);
}
