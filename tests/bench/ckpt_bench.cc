// What a checkpoint costs, beside what this machine can do in the same minute: every measurement is
// taken in turn with the others, and the medians are compared. One line each:
//
//   stall      how long training stands still, of the time to copy the same bytes (its floor), and
//   of
//              a step
//   step       a step's time while the checkpoint is written, of that of a step without one
//   write      until durable, of the time to write and sync as many bytes to one file
//   digest     what digesting blocks just before they are written adds, of the time until durable
//   resume     agreeing on a checkpoint and reading it, of the time to read as many bytes
//   torch      torch.save and torch's distributed checkpoint of the same bytes, where there is
//              torch, with the syncs that they leave out; PYTHON=/usr/bin/python3 is asked
//
//   ckpt_bench [MIB [TURNS [DIRECTORY]]]      default: 96 MiB, 5 turns, in the working directory
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "ckpt/ckpt.h"

using namespace trainlaunch;

namespace {

double since(Clock::time_point begin) { return Seconds(Clock::now() - begin).count(); }

template <class F>
double timed(F&& work) {
  const auto begin = Clock::now();
  work();
  return since(begin);
}

double median(std::vector<double> all) {
  if (all.empty()) return 0;
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "ckpt_bench: %s\n", why.c_str());
  std::exit(1);
}

// Weights and two moments of one tensor.
struct Content {
  explicit Content(uint64_t mib) : elements(static_cast<int64_t>((mib << 20) / 12)) {
    for (const char* slot : {"weight", "m", "v"}) {
      memory.emplace_back(static_cast<size_t>(elements), 0.5f);
      pieces.push_back(
          {"w", slot, 0, elements, View(memory.back().data(), DType::f32, {elements})});
    }
  }
  uint64_t bytes() const { return static_cast<uint64_t>(elements) * 12; }
  int64_t elements;
  std::vector<std::vector<float>> memory;
  std::vector<Piece> pieces;
};

// A step that does nothing but compute.
double step() {
  return timed([] {
    volatile double sum = 0;
    for (int i = 0; i < 8'000'000; ++i) sum = sum + 1.0 / (i + 1);
  });
}

// Python's side: a line in, the seconds of both ways to save out.
class Torch {
 public:
  explicit Torch(uint64_t bytes, const std::string& dir) {
    int in[2], out[2];
    if (pipe(in) != 0 || pipe(out) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], 0);
      dup2(out[1], 1);
      for (int fd : {in[0], in[1], out[0], out[1]}) close(fd);
      const char* source = std::getenv("TL_SOURCE");
      const std::string script = std::string(source ? source : ".") + "/tests/bench/ckpt_torch.py";
      const char* asked = std::getenv("PYTHON");
      const char* python = asked ? asked : "/usr/bin/python3";
      execl(python, python, script.c_str(), std::to_string(bytes).c_str(), dir.c_str(), nullptr);
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_ = fdopen(in[1], "w");
    from_ = fdopen(out[0], "r");
  }
  ~Torch() {
    if (to_) std::fclose(to_);
    if (from_) std::fclose(from_);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
  }
  Torch(const Torch&) = delete;
  Torch& operator=(const Torch&) = delete;
  // False: there is none. A negative time: not this one.
  bool save(double& plain, double& distributed) {
    std::fputs("\n", to_);
    std::fflush(to_);
    return std::fscanf(from_, "%lf %lf", &plain, &distributed) == 2;
  }

 private:
  pid_t pid_ = -1;
  FILE *to_ = nullptr, *from_ = nullptr;
};

class Bench {
 public:
  Bench(uint64_t mib, std::string dir)
      : content_(mib),
        dir_(std::move(dir)),
        copy_(content_.bytes()),
        torch_(content_.bytes(), dir_) {
    SaveOptions options;
    options.verify = false;  // reading back is no part of what makes a checkpoint durable
    auto writer = Writer::open(dir_ + "/run", options, *control_);
    if (!writer) give_up(writer.error().what);
    writer_ = std::move(*writer);
    if (auto bytes = writer_->reserve(content_.pieces); !bytes) give_up(bytes.error().what);
    signal(SIGPIPE, SIG_IGN);
  }

  void turn(uint64_t n) {
    raw();
    ours(n);
    resume();
    double plain = 0, distributed = 0;
    if (!torch_.save(plain, distributed)) return;
    add("torch.save", plain);
    if (distributed >= 0) add("torch distributed", distributed);
  }

  void report() const {
    const double mb = static_cast<double>(content_.bytes()) / 1e6;
    std::printf("%.0f MB, medians of %zu turns\n", mb, times_.at("write").size());
    line("stall", "copy", "copying");
    line("stall", "step", "a step alone");
    line("step beside a save", "step", "a step alone");
    line("write", "raw", "writing and syncing");
    line("digest", "write", "the time until durable");
    line("resume", "read", "reading");
    for (const char* other : {"torch.save", "torch distributed"})
      if (times_.contains(other)) line(other, "write", "ours, until durable");
  }

 private:
  void add(const std::string& name, double seconds) { times_[name].push_back(seconds); }
  void line(const std::string& name, const std::string& base, const char* what) const {
    const double a = median(times_.at(name)), b = median(times_.at(base));
    std::printf("%-18s  %8.1f ms  %6.2f x %s (%.1f ms)\n", name.c_str(), a * 1e3, a / b, what,
                b * 1e3);
  }

  // Seconds to hand the bytes to the system in blocks, as the writer does.
  double hand_over(bool digested) {
    const std::string name = dir_ + "/handed";
    const double seconds = timed([&] {
      Fd fd(::open(name.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600));
      constexpr size_t block = 256 << 10;
      Digest digest;
      for (size_t at = 0; at < copy_.size(); at += block) {
        const size_t n = std::min(block, copy_.size() - at);
        if (digested) digest.update(copy_.data() + at, n);
        if (!write_fully(fd.get(), copy_.data() + at, n, name)) give_up("cannot write " + name);
      }
      (void)digest.hex();
    });
    unlink(name.c_str());
    return seconds;
  }

  // What the machine can do: copy, digest, write and sync, read.
  void raw() {
    add("copy", timed([&] {
          char* to = copy_.data();
          for (const auto& slot : content_.memory) {
            std::memcpy(to, slot.data(), slot.size() * sizeof(float));
            to += slot.size() * sizeof(float);
          }
        }));
    const double bare = hand_over(false);
    add("digest", std::max(0.0, hand_over(true) - bare));
    const std::string name = dir_ + "/raw";
    sync();  // what others have written is not to be paid here
    add("raw", timed([&] {
          Fd fd(::open(name.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600));
          (void)!fallocate(fd.get(), 0, 0, static_cast<off_t>(copy_.size()));
          constexpr size_t chunk = 4 << 20;
          for (size_t at = 0; at < copy_.size(); at += chunk)
            if (!write_fully(fd.get(), copy_.data() + at, std::min(chunk, copy_.size() - at), name))
              give_up("cannot write " + name);
          if (fsync(fd.get()) != 0) give_up("cannot sync " + name);
        }));
    add("read", timed([&] {
          Fd fd(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
          if (!read_fully(fd.get(), copy_.data(), copy_.size(), 0, name))
            give_up("cannot read " + name);
        }));
    unlink(name.c_str());
  }

  void ours(uint64_t n) {
    for (int i = 0; i < 3; ++i) add("step", step());
    State state;
    state.step = n;
    sync();
    writer_->save(content_.pieces, {{"w", content_.elements}}, state, {}, *device_, *stream_);
    for (;;) {
      const double time = step();
      auto outcome = writer_->poll();
      if (!outcome) {
        add("step beside a save", time);
        continue;
      }
      if (!outcome->status) give_up(outcome->status.error().what);
      add("stall", outcome->stall.count());
      add("write", outcome->write.count());
      if (!times_.contains("step beside a save")) add("step beside a save", time);
      break;
    }
    writer_->wait();
  }

  void resume() {
    add("resume", timed([&] {
          auto agreed = Reader::agree(writer_->sources(), std::nullopt, *control_);
          if (!agreed || !agreed->reader) give_up("no checkpoint to resume from");
          if (auto s = agreed->reader->read(content_.pieces, *device_, *stream_); !s)
            give_up(s.error().what);
        }));
  }

  Content content_;
  std::string dir_;
  std::vector<char> copy_;
  Torch torch_;
  std::unique_ptr<Control> control_ = make_single_control();
  std::unique_ptr<Device> device_ = make_host_device();
  std::unique_ptr<Stream> stream_ = std::move(*device_->stream());
  std::unique_ptr<Writer> writer_;
  std::map<std::string, std::vector<double>> times_;
};

}  // namespace

int main(int argc, char** argv) {
  const uint64_t mib = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 96;
  const uint64_t turns = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 5;
  std::string dir = std::string(argc > 3 ? argv[3] : ".") + "/ckpt_bench.XXXXXX";
  if (mib == 0 || turns == 0 || !mkdtemp(dir.data())) give_up("no such size or directory");
  {
    Bench bench(mib, dir);
    for (uint64_t n = 1; n <= turns; ++n) bench.turn(n);
    bench.report();
  }
  std::filesystem::remove_all(dir);
}
