#include "launcher/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "base/printable.h"
#include "boot/bootstrap.h"
#include "boot/conn.h"
#include "boot/session.h"
#include "boot/worker.h"
#include "config.h"
#include "launcher/plans.h"
#include "launcher/worker_process.h"

namespace trainlaunch {
namespace {

constexpr Seconds bootstrap_limit{120};
constexpr Seconds term_to_kill{5};
constexpr Seconds kill_to_end{15};  // for a worker that not even SIGKILL ends
constexpr Seconds farewell_limit{10};
constexpr int stop_signals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
constexpr int passed_signals[] = {SIGUSR1, SIGUSR2};

// Ids of the worker's calls, among those of the supervisor's own.
constexpr uint64_t of_worker = uint64_t{1} << 63;

bool is_stop(int signal) {
  return std::find(std::begin(stop_signals), std::end(stop_signals), signal) !=
         std::end(stop_signals);
}

struct Signals {
  Fd fd;            // they are read from here, by the main loop
  sigset_t before;  // the mask to start the worker with
};

// To be called before any thread starts: threads inherit the mask.
Result<Signals> take_signals() {
  sigset_t ours;
  sigemptyset(&ours);
  sigaddset(&ours, SIGCHLD);
  for (int s : stop_signals) sigaddset(&ours, s);
  for (int s : passed_signals) sigaddset(&ours, s);
  Signals out;
  sigprocmask(SIG_BLOCK, &ours, &out.before);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);  // ignored, as nohup scripts hand it down, no child could be awaited
  out.fd = Fd(signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!out.fd) return fail_errno("signalfd");
  return out;
}

// Rank 0 holds a connection to every rank. Returns the limits as they were, for the worker.
rlimit raise_descriptor_limit() {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit raised{before.rlim_max, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &raised);
  return before;
}

std::string signal_name(int n) {
  const char* text = strsignal(n);
  return "signal " + std::to_string(n) + (text ? " (" + std::string(text) + ")" : "");
}

class Supervisor {
 public:
  Supervisor(const Job& job, Signals signals, rlimit descriptors, Bootstrap& bootstrap,
             Session session)
      : job_(job),
        signals_(std::move(signals)),
        descriptors_(descriptors),
        bootstrap_(bootstrap),
        session_(std::move(session)) {}

  int run() {
    if (Status s = start_worker(); !s) {
      fail_with(me() + ": " + s.error().what, s.error().exit);
      leave(s.error().exit);
    }
    while (!finish_code_ && !(hub_lost_ && (left_ || Clock::now() >= give_up_at_))) {
      wait();
      read_signals();
      reap();
      read_worker();
      read_link();
      if (Clock::now() >= kill_at_) kill_worker();
    }
    return end();
  }

 private:
  std::string me() const { return "rank " + name_ranks(world(), {world().rank}); }
  const World& world() const { return session_.world; }
  Link& link() { return *session_.link; }

  Status start_worker() {
    WorkerProcess::Spec spec;
    spec.path = job_.path;
    spec.argv = job_.argv;
    spec.given = job_.given;
    spec.signal_mask = signals_.before;
    spec.descriptors = descriptors_;
    Fd theirs;
    if (job_.kind == Job::Kind::engine) {
      int pair[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return fail_errno("socketpair");
      control_.emplace(Fd(pair[0]), max_body(1));
      theirs = Fd(pair[1]);
      std::vector<int> sockets;
      for (const Fd& fd : session_.local_sockets) sockets.push_back(fd.get());
      control_->send(welcome(world(), sockets));
      spec.environment = {{control_variable, std::to_string(theirs.get())}};
      // GNU's OpenMP spins for milliseconds at the end of each parallel loop. Where ranks share
      // CPUs that is time taken from each other; it reads the variable before main().
      if (!std::getenv("GOMP_SPINCOUNT") && !std::getenv("OMP_WAIT_POLICY"))
        spec.environment.emplace_back("GOMP_SPINCOUNT", "20000");
      spec.inherit = {theirs.get()};
      for (int fd : sockets)
        if (fd >= 0) spec.inherit.push_back(fd);
    } else {
      spec.environment = place_variables(world(), session_.main_address, session_.main_port);
    }
    auto worker = WorkerProcess::start(spec);
    // The worker's ends are the worker's alone: its death must be seen at the other ends.
    session_.local_sockets.clear();
    if (!worker) return forward(worker);
    worker_.emplace(std::move(*worker));
    return {};
  }

  void wait() {
    pollfd fds[] = {{signals_.fd.get(), POLLIN, 0},
                    {hub_lost_ ? -1 : link().fd(), link().events(), 0},
                    {control_ ? control_->fd() : -1, control_ ? control_->events() : short{0}, 0}};
    const Deadline tick = Deadline::in(Seconds(1));
    ::poll(fds, std::size(fds), Deadline{std::min(tick.at, kill_at_)}.poll_ms());
  }

  void read_signals() {
    signalfd_siginfo info;
    while (::read(signals_.fd.get(), &info, sizeof info) == sizeof info) {
      const int number = static_cast<int>(info.ssi_signo);
      if (number == SIGCHLD) continue;  // it only wakes the loop
      if (is_stop(number)) stopped_by_ = number;
      if (worker_ && worker_->running()) worker_->signal(number);
    }
  }

  void reap() {
    if (!worker_) return;
    if (const auto status = worker_->reap()) worker_ended(*status);
  }

  // Once: what this does not end at once may never end, and is not waited for.
  void kill_worker() {
    kill_at_ = Clock::time_point::max();
    if (worker_ && worker_->running()) worker_->signal(SIGKILL);
  }

  void worker_ended(int status) {
    read_worker();  // what it said last
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    const bool orderly = code == exit_code::done || code == exit_code::requeue;
    // All ranks stop early together: one line is enough.
    if (!failed_ && code == exit_code::requeue && !reason_.empty() && world().rank == 0)
      say(reason_);
    if (failed_ || orderly) return sweep_and_leave(code);
    if (Status s = worker_->started(); !s) {
      fail_with(me() + ": " + s.error().what, s.error().exit);
      return sweep_and_leave(s.error().exit);
    }
    if (stopped_by_) {
      fail_with(me() + ": stopped by " + signal_name(stopped_by_), exit_code::cancelled);
      return sweep_and_leave(exit_code::cancelled);
    }
    const bool told = WIFEXITED(status) && !reason_.empty();
    fail_with(me() + ": " + (told ? reason_ : ending_of(status) + progress_), code);
    sweep_and_leave(code);
  }

  static std::string ending_of(int status) {
    return WIFEXITED(status) ? "the worker exited with code " + std::to_string(WEXITSTATUS(status))
                             : "the worker was killed by " + signal_name(WTERMSIG(status));
  }

  // Sweeping may take seconds. A failure is sent before: it must not lose to one that it caused.
  void sweep_and_leave(int code) {
    if (!hub_lost_) (void)link().pump();  // read_link() meets an error again
    worker_->sweep();
    leave(code);
  }

  void fail_with(const std::string& what, int code) {
    Message m;
    m.kind = Message::Kind::failed;
    m.name = what;
    m.number = code;
    link().send(m);
  }

  void leave(int code) {
    left_ = true;
    kill_at_ = Clock::time_point::max();
    Message m;
    m.kind = Message::Kind::left;
    m.number = code;
    link().send(m);
  }

  void read_worker() {
    if (!control_) return;
    const Status written = control_->flush();
    auto open = control_->fill();
    for (;;) {
      auto m = control_->next();
      if (!m || !*m) {
        if (!m || !written || !open || !*open) control_.reset();
        return;
      }
      handle_worker(std::move(**m));
    }
  }

  void handle_worker(Message m) {
    using Kind = Message::Kind;
    if (m.kind == Kind::progress) {
      progress_ = " at step " + std::to_string(m.number) + ", " + m.name;
      link().set_progress(m.number, std::move(m.name));
    } else if (m.kind == Kind::failed) {
      reason_ = std::move(m.name);
    } else if (m.kind == Kind::put || m.kind == Kind::get || m.kind == Kind::gather) {
      m.id |= of_worker;
      link().send(m);
    }
  }

  void read_link() {
    if (hub_lost_) return;
    const Status alive = link().pump();
    // What the hub said before it hung up still counts.
    while (auto m = link().next()) {
      if (m->kind == Message::Kind::failure) {
        stop_all(m->name, static_cast<int>(m->number));
      } else if (m->kind == Message::Kind::finish) {
        finish_code_ = static_cast<int>(m->number);
      } else if ((m->id & of_worker) && control_) {
        m->id &= ~of_worker;
        control_->send(*m);
      }
    }
    if (control_) (void)control_->flush();
    if (alive || finish_code_) return;
    hub_lost_ = true;
    give_up_at_ =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(term_to_kill + kill_to_end);
    stop_all("rank " + name_ranks(world(), {0}) + ": its supervisor is lost: " + alive.error().what,
             exit_code::failed);
  }

  // The first failure has reached this rank, its own or another's.
  void stop_all(const std::string& what, int code) {
    if (failed_) return;
    failed_ = true;
    failure_code_ = code;
    if (speaks()) say(what);
    if (!worker_ || !worker_->running()) return;
    if (control_) {
      Message m;
      m.kind = Message::Kind::failure;
      m.name = what;
      control_->send(m);
      (void)control_->flush();
    }
    worker_->signal(SIGTERM);
    worker_->signal(SIGCONT);
    kill_at_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(term_to_kill);
  }

  // Who prints: rank 0; when that is lost, the first rank of each node that is still there.
  bool speaks() const {
    const int first = world().node == world().node_of[0] ? 1 : 0;
    return hub_lost_ ? world().local_rank == first : world().rank == 0;
  }

  int end() {
    const int code = failed_ ? failure_code_ : finish_code_.value_or(exit_code::failed);
    if (failed_ && world().size > 1) {
      // PMIx carries the code to srun and mpirun at once. The other ranks wait for that, and do it
      // themselves when it does not come.
      if (!session_.hub && !hub_lost_) ::poll(nullptr, 0, 5000);
      bootstrap_.abort(code);
      return code;
    }
    session_.link.reset();
    if (session_.hub) session_.hub->drain(Deadline::in(farewell_limit));
    if (Status s = bootstrap_.finalize(Deadline::in(farewell_limit)); !s) {
      say(me() + ": " + s.error().what);
      bootstrap_.abort(code ? code : exit_code::failed);
      return code ? code : exit_code::failed;
    }
    return code;
  }

  const Job& job_;
  const Signals signals_;
  const rlimit descriptors_;  // for the worker
  Bootstrap& bootstrap_;
  Session session_;
  std::optional<WorkerProcess> worker_;
  std::optional<Conn> control_;
  std::string progress_;
  std::string reason_;  // the worker's own, of its failure
  int stopped_by_ = 0;
  bool left_ = false, failed_ = false, hub_lost_ = false;
  int failure_code_ = 0;
  std::optional<int> finish_code_;
  Clock::time_point kill_at_ = Clock::time_point::max(), give_up_at_ = kill_at_;
};

}  // namespace

void say(const std::string& text) {
  const std::string line = "train-launch: " + one_line(text) + "\n";
  (void)!::write(STDERR_FILENO, line.data(), line.size());
}

std::vector<std::pair<std::string, std::string>> place_variables(const World& w,
                                                                 const std::string& main_address,
                                                                 int main_port) {
  return {{"RANK", std::to_string(w.rank)},
          {"WORLD_SIZE", std::to_string(w.size)},
          {"LOCAL_RANK", std::to_string(w.local_rank)},
          {"LOCAL_WORLD_SIZE", std::to_string(w.local_size)},
          {"MASTER_ADDR", main_address},
          {"MASTER_PORT", std::to_string(main_port)}};
}

int supervise(const Job& job) {
  const rlimit descriptors = raise_descriptor_limit();
  auto signals = take_signals();
  if (!signals) {
    say(signals.error().what);
    return signals.error().exit;
  }
  auto bootstrap = make_bootstrap(system_environment, Deadline::in(bootstrap_limit));
  if (!bootstrap) {
    // Wrong usage is the same on every rank: one line is enough.
    const Error& e = bootstrap.error();
    if (e.exit != exit_code::usage || presumed_rank(system_environment) == 0) say(e.what);
    return e.exit;
  }
  auto session = open_session(**bootstrap, VERSION, Pace{}, Deadline::in(bootstrap_limit));
  const Status joined =
      session ? compare_plans(*session, system_environment, Deadline::in(bootstrap_limit))
              : Status(forward(session));
  if (!joined) {
    const World& w = (*bootstrap)->world();
    say("rank " + name_ranks(w, {w.rank}) + ": " + joined.error().what);
    (*bootstrap)->abort(joined.error().exit);
    return joined.error().exit;
  }
  return Supervisor(job, std::move(*signals), descriptors, **bootstrap, std::move(*session)).run();
}

}  // namespace trainlaunch
