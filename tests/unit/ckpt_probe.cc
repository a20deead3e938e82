// Saves and resumes checkpoints of known content, so that others can kill it, make its calls fail
// and compare what is left:
//
//   ckpt_probe save RUN FIRST LAST [key=value...]   saves steps FIRST to LAST, one after the other
//   ckpt_probe resume RUN [key=value...]            what a new job would go on from
//
// keys: ranks (1), keep (3), every (0: milestones), verify (1), writers (8), scale (1: of the
// content, 75 KB), step (resume: this one only), local (a directory for the local level, which then
// has every step and the shared one those that are even). Each rank is a process when there are
// several.
//
// save prints "durable S" or "failed S: why" when it is known, with "local " before it for that
// level, and exits with 3 when a save has failed. resume prints "resumed S" or "none" and exits
// with 4 when the content is not that of S. Both exit with the code of an error of opening, and
// with 5 when a rank was killed.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <new>
#include <string>

#include "ckpt_saves.h"
#include "ranks.h"

using namespace trainlaunch;

namespace {

struct Request {
  std::string command, run, local;
  uint64_t first = 0, last = 0;
  std::map<std::string, int64_t> keys{{"ranks", 1},   {"keep", 3},  {"every", 0}, {"verify", 1},
                                      {"writers", 8}, {"scale", 1}, {"step", -1}};
};

int complain(const Error& e, const World& world) {
  if (world.rank == 0) std::printf("error: %s\n", e.what.c_str());
  return e.exit;
}

SaveOptions options_of(const Request& request) {
  const auto& keys = request.keys;
  return {static_cast<int>(keys.at("keep")), keys.at("every"), static_cast<int>(keys.at("writers")),
          keys.at("verify") != 0, request.local};
}

int save(const Request& request, Control& control) {
  const World& world = control.world();
  auto writer = Writer::open(request.run, options_of(request), control);
  if (!writer) return complain(writer.error(), world);
  const TensorSizes sizes = known_sizes(request.keys.at("scale"));
  Holding mine(world.rank, world.size, sizes);
  int code = 0;
  auto tell = [&] {
    while (auto o = (*writer)->poll()) {
      if (!o->status) code = 3;
      if (world.rank != 0) continue;
      const char* where = o->level == Level::local ? "local " : "";
      if (o->status)
        std::printf("%sdurable %llu\n", where, static_cast<unsigned long long>(o->step));
      else
        std::printf("%sfailed %llu: %s\n", where, static_cast<unsigned long long>(o->step),
                    o->status.error().what.c_str());
      std::fflush(stdout);
    }
  };
  Host host;
  for (uint64_t step = request.first; step <= request.last; ++step) {
    mine.fill(step);
    const Levels levels{request.local.empty() || step % 2 == 0, !request.local.empty()};
    (*writer)->save(mine.pieces, sizes, known_state(step), {levels, false}, *host.device,
                    *host.stream);
    tell();
  }
  (*writer)->wait();
  tell();
  return code;
}

int resume(const Request& request, Control& control) {
  const World& world = control.world();
  std::optional<uint64_t> step;
  if (request.keys.at("step") >= 0) step = static_cast<uint64_t>(request.keys.at("step"));
  // A local directory is found through the run directory, which a writer has to have for that.
  std::unique_ptr<Writer> writer;
  std::vector<Source> sources{{Level::shared, request.run}};
  if (!request.local.empty()) {
    auto opened = Writer::open(request.run, options_of(request), control);
    if (!opened) return complain(opened.error(), world);
    writer = std::move(*opened);
    sources = writer->sources();
  }
  auto agreed = Reader::agree(sources, step, control);
  if (!agreed) return complain(agreed.error(), world);
  if (world.rank == 0)
    for (const PassedOver& p : agreed->passed_over) std::printf("%s\n", p.why.c_str());
  if (!agreed->reader) {
    if (world.rank == 0) std::puts("none");
    return 0;
  }
  const uint64_t found = agreed->reader->state().step;
  if (world.rank == 0 && agreed->reader->level() == Level::local) std::printf("local ");
  const std::string wrong =
      compare_known(*agreed->reader, world, found, known_sizes(request.keys.at("scale")));
  if (world.rank == 0) std::printf("resumed %llu\n", static_cast<unsigned long long>(found));
  if (wrong.empty()) return 0;
  std::printf("rank %d: %s\n", world.rank, wrong.c_str());
  return 4;
}

int work(const Request& request, Control& control) {
  const int code = request.command == "save" ? save(request, control) : resume(request, control);
  std::fflush(stdout);
  return code;
}

// The ranks are processes of one node; when one dies, the others are told.
int as_processes(const Request& request, int ranks) {
  using testing::Board;
  void* shared =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  Board& board = *new (shared) Board;
  World world;
  world.size = world.local_size = ranks;
  world.node_of.assign(static_cast<size_t>(ranks), 0);
  for (int r = 0; r < ranks; ++r) {
    if (fork() != 0) continue;
    world.rank = world.local_rank = r;
    testing::BoardControl control(world, board);
    _exit(work(request, control));
  }
  int code = 0;
  for (int status = 0; waitpid(-1, &status, 0) > 0;) {
    if (WIFSIGNALED(status)) board.broken = true;
    const int one = WIFSIGNALED(status) ? 5 : WEXITSTATUS(status);
    if (one == 5 || code == 0) code = one;
  }
  return code;
}

bool read_arguments(int argc, char** argv, Request& r) {
  int next = 3;
  if (argc < 3) return false;
  r.command = argv[1];
  r.run = argv[2];
  if (r.command == "save") {
    if (argc < 5) return false;
    r.first = std::stoull(argv[3]);
    r.last = std::stoull(argv[4]);
    next = 5;
  } else if (r.command != "resume") {
    return false;
  }
  for (; next < argc; ++next) {
    const std::string word = argv[next];
    const size_t equals = word.find('=');
    if (word.starts_with("local=")) {
      r.local = word.substr(equals + 1);
      continue;
    }
    const auto key = r.keys.find(word.substr(0, equals));
    if (equals == std::string::npos || key == r.keys.end()) return false;
    key->second = std::stoll(word.substr(equals + 1));
  }
  return r.keys["ranks"] > 0;
}

}  // namespace

int main(int argc, char** argv) {
  Request request;
  if (!read_arguments(argc, argv, request)) {
    std::fputs("usage: ckpt_probe save RUN FIRST LAST | resume RUN [key=value...]\n", stderr);
    return 2;
  }
  const auto ranks = static_cast<int>(request.keys["ranks"]);
  if (ranks > 1) return as_processes(request, ranks);
  auto control = make_single_control();
  return work(request, *control);
}
