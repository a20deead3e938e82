#include "job.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <new>
#include <numeric>

#include "../unit/ckpt_saves.h"
#include "../unit/ranks.h"
#include "ckpt/cleanup.h"

namespace trainlaunch::crash {

namespace {

using testing::Board;
using testing::BoardControl;
using testing::world_of;

template <class T>
T* shared_memory() {
  void* p = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? nullptr : new (p) T;
}

// Of the one job that there is at a time.
Board& board() {
  static Board* const shared = shared_memory<Board>();
  return *shared;
}

bool traced() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("TracerPid:")) return std::stoi(line.substr(10)) != 0;
  return false;
}

// One rank of a job.
class Rank {
 public:
  Rank(const Job& job, Control& control, Sheet& sheet)
      : job_(job),
        control_(control),
        world_(control.world()),
        sheet_(sheet),
        mine_(sheet.rank[static_cast<size_t>(world_.rank)]),
        content_(world_.rank, world_.size) {}

  void work() {
    auto writer = Writer::open(job_.run(), options(), control_);
    if (!writer) return trouble("open: " + writer.error().what);
    note("opened", "");
    if (!resume(**writer)) return;
    note("started", "");
    if (job_.wait_for_tracer) {
      while (!traced()) usleep(500);
      // Attached is not yet watching. A signal, even one that is ignored, waits for the tracer, and
      // from there on it sees every call.
      (void)raise(SIGURG);
    }
    for (uint64_t step : job_.steps) save(**writer, step);
    (*writer)->wait();
    for (const std::string& w : (*writer)->warnings()) warn(w);
    if (world_.rank != 0) mine_.heard = sheet_.told.load();
  }

 private:
  SaveOptions options() const {
    return {job_.keep, 0, job_.writers, true, job_.local ? job_.root + "/local" : ""};
  }

  void trouble(const std::string& text) {
    if (mine_.trouble[0] == '\0')
      std::snprintf(mine_.trouble.data(), mine_.trouble.size(), "%s", text.c_str());
  }
  void warn(const std::string& text) {
    ++mine_.warnings;
    std::snprintf(mine_.warning.data(), mine_.warning.size(), "%s", text.c_str());
  }

  // The first error of any rank, on all.
  bool all_well(const char* name, const Status& status) {
    auto all = control_.gather(name, status ? "" : status.error().what, Deadline::never());
    if (!all) return trouble(all.error().what), false;
    for (const std::string& said : *all)
      if (!said.empty()) return trouble(std::string(name) + ": " + said), false;
    return true;
  }

  // The order and the votes of lib/train/saving.cc.
  bool resume(Writer& writer) {
    for (const std::string& w : writer.warnings()) warn(w);
    auto agreed = Reader::agree(writer.sources(), std::nullopt, control_);
    if (!agreed) return trouble("agree: " + agreed.error().what), false;
    Reader* const reader = agreed->reader.get();
    mine_.passed_over = static_cast<uint32_t>(agreed->passed_over.size());
    const uint64_t from = reader ? reader->state().step : 0;
    if (!all_well("resume: content", reader ? compare(*reader, from) : Status())) return false;
    mine_.resumed = from;
    auto moved = writer.go_on_from(from, agreed->passed_over);
    if (!all_well("resume: set aside", moved ? Status() : forward(moved))) return false;
    note("moved", "");
    if (reader && reader->level() == Level::shared)
      (void)writer.mark_verified(from, reader->digest());
    if (world_.rank == 0 && writer.count_start(from, "configuration")) note("counted", "");
    return true;
  }

  Status compare(Reader& reader, uint64_t step) {
    std::string wrong;
    if (reader.whole()) {
      wrong = compare_known(reader, world_, step);
    } else {
      auto read = reader.read(content_.pieces, *host_.device, *host_.stream);
      if (!read) return read;
      if (content_.wrong(step) != 0) wrong = "wrong values";
    }
    if (!wrong.empty()) return fail("step " + std::to_string(step) + ": " + wrong);
    return {};
  }

  void save(Writer& writer, uint64_t step) {
    const Levels levels{!job_.local || step % 2 == 0, job_.local};
    content_.fill(step);
    writer.wait();
    mine_.quiet = false;
    writer.save(content_.pieces, known_sizes(), known_state(step), {levels, false}, *host_.device,
                *host_.stream);
    content_.fill(step + 100);  // training goes on
    for (int outcomes = levels.shared + levels.local; outcomes > 0; ++mine_.polls) {
      while (auto outcome = writer.poll()) {
        report(*outcome);
        --outcomes;
      }
      usleep(100);
    }
    mine_.quiet = true;
  }

  void report(const Outcome& o) {
    if (o.succeeded_by_another)
      trouble("the run was taken to be another's: " + o.status.error().what);
    if (o.status)
      note(o.level == Level::shared ? "durable" : "durable-here", std::to_string(o.step));
    auto& saved = mine_.saved[o.step];
    if (o.status)
      saved = Sheet::durable;
    else if (saved == Sheet::unknown)
      saved = Sheet::failed;
  }

  const Job& job_;
  Control& control_;
  const World& world_;
  Sheet& sheet_;
  Sheet::Rank& mine_;
  Holding content_;
  Host host_;
};

// One host, which the nodes share.
std::vector<std::string> names_of(size_t nodes) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  std::vector<std::string> names{host};
  for (size_t n = 1; n < nodes; ++n) names.push_back(host + ("-" + std::to_string(n)));
  return names;
}

[[noreturn]] void be_rank(const Job& job, const Fault& fault, Sheet& sheet, Board& board,
                          int rank) {
  if (job.largest_file > 0) {
    const rlimit limit{job.largest_file, job.largest_file};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  BoardControl channel(world_of(job.per_node, names_of(job.per_node.size()), rank), board);
  CountedControl counted(channel);
  arm(sheet, rank, job.root, fault);
  Rank(job, counted, sheet).work();
  disarm();
  sheet.rank[static_cast<size_t>(rank)].quiet = true;
  _exit(0);
}

}  // namespace

SharedSheet::SharedSheet() : sheet_(shared_memory<Sheet>()) {}
SharedSheet::~SharedSheet() { munmap(sheet_, sizeof(Sheet)); }

Running::Running(const Job& job, const Fault& fault, Sheet& sheet)
    : power_(fault.effect == Effect::power) {
  board().reset();
  const int ranks = std::accumulate(job.per_node.begin(), job.per_node.end(), 0);
  std::fflush(nullptr);
  for (int r = 0; r < ranks; ++r) {
    const pid_t pid = fork();
    if (pid == 0) be_rank(job, fault, sheet, board(), r);
    pids_.push_back(pid);
  }
}

Running::~Running() {
  for (pid_t pid : pids_)
    if (pid > 0 && ::kill(pid, SIGKILL) == 0) waitpid(pid, nullptr, 0);
}

End Running::wait() {
  End end = End::done;
  const auto deadline = Deadline::in(Seconds(60));
  for (size_t left = pids_.size(); left > 0;) {
    bool ended = false;
    for (pid_t& pid : pids_) {
      int status = 0;
      if (pid <= 0 || waitpid(pid, &status, WNOHANG) != pid) continue;
      pid = 0;
      --left;
      ended = true;
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
      board().broken = true;
      const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      if (end != End::crashed) end = killed ? End::killed : End::crashed;
      if (power_)
        for (pid_t other : pids_)
          if (other > 0) ::kill(other, SIGKILL);
    }
    if (deadline.over()) return End::hung;
    if (!ended) usleep(200);
  }
  return end;
}

std::string litter_in(const std::string& run) {
  std::string all;
  for (const std::string& name : litter(run)) all += name + " ";
  for (const std::string& name : entries(run)) {
    if (!name.starts_with("step-")) continue;
    for (const std::string& file : entries(run + "/" + name)) {
      const bool known = file == "MANIFEST.json" || file == "VERIFIED" || file == "WHY" ||
                         file.starts_with("shard-");
      if (!known) all += name + "/" + file + " ";
    }
  }
  return all;
}

std::string clean_up(const Job& job) {
  if (!std::filesystem::exists(job.run() + "/run.lock")) return "";  // killed before all else
  auto cleaned = clean(job.run(), {});
  if (!cleaned) return cleaned.error().what;
  const std::string left = litter_in(job.run());
  return left.empty() ? "" : "litter after gc: " + left;
}

std::string judge(const Job& job, uint64_t durable, const std::vector<int>& per_node, size_t bad) {
  Job next = job;
  next.per_node = per_node;
  next.steps.assign(1, 8);
  next.wait_for_tracer = false;
  next.largest_file = 0;
  SharedSheet sheet;
  const End end = run_job(next, {}, *sheet);
  if (end == End::hung) return "the next job hangs";
  if (end != End::done) return "the next job dies";
  if (const std::string all = sheet->troubles(); !all.empty()) return "the next job: " + all;
  const Sheet::Rank& first = sheet->rank[0];
  const uint64_t resumed = first.resumed;
  if (resumed < durable)
    return "lost: step " + std::to_string(durable) + " was reported durable, resumed is " +
           std::to_string(resumed);
  if (first.passed_over > bad) return std::to_string(first.passed_over) + " damaged checkpoints";
  if (first.warnings > 0) return std::string("the next job warns: ") + first.warning.data();
  if (first.saved[8] != Sheet::durable) return "the next job cannot save";
  if (const std::string names = litter_in(job.run()); !names.empty()) return "litter: " + names;
  return "";
}

}  // namespace trainlaunch::crash
