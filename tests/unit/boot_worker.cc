// Not a test of itself: the worker that tests/e2e/launcher.bats starts to exercise the control
// channel under a real launcher. Its arguments say what it does:
//
//   channel     every call once, and the local sockets; prints one line
//   late RANK   all ranks but this one gather, with a deadline of one second; prints the error
//   wait        says how far it is and waits for ever
//   obey        waits for SIGTERM, then exits with 75
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "boot/boot.h"
#include "boot/worker.h"
#include "launcher/supervisor.h"
#include "launcher/worker_process.h"

using namespace trainlaunch;

namespace {

constexpr Seconds enough{20};

int wrong(const std::string& what) {
  say("boot_worker: " + what);
  return exit_code::failed;
}

// Sends the own rank to each peer and expects the peer's.
bool sockets_work(const WorkerControl& control) {
  const World& w = control.world();
  const auto& sockets = control.local_sockets();
  for (int fd : sockets)
    if (fd >= 0 && ::send(fd, &w.local_rank, sizeof w.local_rank, 0) != sizeof w.local_rank)
      return false;
  for (int r = 0; r < static_cast<int>(sockets.size()); ++r) {
    if ((sockets[r] < 0) != (r == w.local_rank)) return false;
    int theirs = -1;
    if (sockets[r] >= 0 && ::recv(sockets[r], &theirs, sizeof theirs, 0) != sizeof theirs)
      return false;
    if (sockets[r] >= 0 && theirs != r) return false;
  }
  return true;
}

int channel(WorkerControl& control) {
  const World& w = control.world();
  const std::string me = std::to_string(w.rank);
  const auto all = control.gather("ranks", me, Deadline::in(enough));
  if (!all) return wrong(all.error().what);
  for (int r = 0; r < w.size; ++r)
    if ((*all)[r] != std::to_string(r)) return wrong("gather mixed up the ranks");
  const auto yes = control.vote("yes", true, Deadline::in(enough));
  const auto no = control.vote("no", w.rank != w.size - 1, Deadline::in(enough));
  if (!yes || !*yes || !no || *no) return wrong("a vote went wrong");
  const std::string big(Control::max_value, 'x');
  if (w.rank == w.size - 1)
    if (Status s = control.put("big", big); !s) return wrong(s.error().what);
  const auto got = control.get("big", Deadline::in(enough));
  if (!got || *got != big) return wrong("get went wrong");
  if (Status s = control.barrier("end", Deadline::in(enough)); !s) return wrong(s.error().what);
  if (!sockets_work(control)) return wrong("a local socket leads to the wrong rank");
  std::printf("rank %d of %d, %d of %d on %s: channel ok, %zu sockets\n", w.rank, w.size,
              w.local_rank, w.local_size, w.nodes[w.node].c_str(), control.local_sockets().size());
  return exit_code::done;
}

int late(WorkerControl& control, int rank) {
  control.progress(7, "backward");
  if (control.world().rank == rank) {
    ::poll(nullptr, 0, 5000);
    return exit_code::done;
  }
  const auto all = control.gather("loss", "", Deadline::in(Seconds(3)));
  if (all) return wrong("nobody was late");
  std::printf("%s\n", all.error().what.c_str());
  return exit_code::done;
}

volatile sig_atomic_t asked = 0;

int obey() {
  struct sigaction action {};
  action.sa_handler = [](int) { asked = 1; };
  sigaction(SIGTERM, &action, nullptr);
  std::puts("ready");
  std::fflush(stdout);
  while (!asked) ::poll(nullptr, 0, 100);
  return exit_code::requeue;
}

int work(const std::vector<std::string>& arguments) {
  auto control = make_worker_control();
  if (!control) return wrong(control.error().what);
  const std::string what = arguments.empty() ? "" : arguments[0];
  if (what == "channel") return channel(**control);
  if (what == "late" && arguments.size() == 2) return late(**control, std::stoi(arguments[1]));
  if (what == "obey") return obey();
  if (what == "wait") {
    (*control)->progress(12, "forward");
    std::puts("ready");
    std::fflush(stdout);
    const auto never = (*control)->get("never", Deadline::never());
    return wrong(never ? "who put that?" : never.error().what);
  }
  return wrong("what?");
}

}  // namespace

int main(int argc, char** argv) {
  const auto given = open_descriptors();
  if (is_worker()) return work({argv + 1, argv + argc});
  Job job;
  job.path = "/proc/self/exe";
  job.argv.assign(argv, argv + argc);
  job.given = given;
  return supervise(job);
}
