// Runs a function as several ranks, each in a process of its own, on nodes that are pretended.
#pragma once

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "channels.h"

namespace trainlaunch::testing {

// What all ranks read and write: a list of keys and values that only grows.
struct Board {
  struct Entry {
    std::atomic<bool> ready{false};
    std::array<char, 128> key{};
    std::array<char, 8192> value{};
    size_t size = 0;
  };
  std::atomic<size_t> count{0};
  std::atomic<bool> broken{false};  // a rank has died: nobody waits for it
  std::array<Entry, 8192> entries;

  // As new. A new one costs the touch of 70 MB.
  void reset() {
    for (size_t i = 0; i < count && i < entries.size(); ++i) {
      entries[i].ready = false;
      entries[i].key.fill('\0');
    }
    count = 0;
    broken = false;
  }
};

class BoardControl final : public Control {
 public:
  BoardControl(World world, Board& board) : world_(std::move(world)), board_(board) {}
  const World& world() const override { return world_; }

  Status put(std::string_view key, std::string_view value) override {
    const size_t i = board_.count.fetch_add(1);
    if (i >= board_.entries.size() || key.size() >= 128 || value.size() > 8192)
      return fail("the board is full");
    Board::Entry& e = board_.entries[i];
    std::memcpy(e.key.data(), key.data(), key.size());
    std::memcpy(e.value.data(), value.data(), value.size());
    e.size = value.size();
    e.ready = true;
    return {};
  }
  Result<std::string> get(std::string_view key, Deadline deadline) override {
    for (size_t i = 0;;) {
      if (i < board_.count && i < board_.entries.size()) {
        const Board::Entry& e = board_.entries[i];
        if (!e.ready) {
          std::this_thread::yield();
          continue;
        }
        if (key == e.key.data()) return std::string(e.value.data(), e.size);
        ++i;
      } else {
        if (board_.broken) return fail("a rank has died");
        if (deadline.over()) return fail("no " + std::string(key));
        std::this_thread::sleep_for(std::chrono::microseconds(300));
      }
    }
  }
  Result<std::vector<std::string>> gather(std::string_view name, std::string_view mine,
                                          Deadline deadline) override {
    const std::string key = turn(name) + " " + std::string(name) + " ";
    if (auto p = put(key + std::to_string(world_.rank), mine); !p) return forward(p);
    std::vector<std::string> all;
    for (int r = 0; r < world_.size; ++r) {
      auto v = get(key + std::to_string(r), deadline);
      if (!v) return forward(v);
      all.push_back(std::move(*v));
    }
    return all;
  }

 private:
  // The n-th gather of a name meets the n-th of that name; threads may gather different ones.
  std::string turn(std::string_view name) {
    std::lock_guard lock(mutex_);
    return std::to_string(turns_[std::string(name)]++);
  }

  World world_;
  Board& board_;
  std::mutex mutex_;
  std::map<std::string, int> turns_;
};

struct Layout {
  std::vector<int> per_node;  // ranks
  bool sockets = true;        // between the ranks of a node
  int cpus = 0;               // that all ranks have to share; 0: all there are
};

// A rank's part: an empty text when all is well, else what is not. Ranks that a signal killed have
// "signal N".
using Body = std::function<std::string(Control&, const std::vector<int>& local_sockets)>;

inline std::vector<std::string> run_ranks(const Layout& layout, const Body& body) {
  void* shared =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Board& board = *new (shared) Board;

  std::vector<std::string> nodes;
  for (size_t n = 1; n <= layout.per_node.size(); ++n) nodes.push_back("n" + std::to_string(n));
  const World world = world_of(layout.per_node, nodes, 0);
  std::vector<std::vector<int>> sockets(world.size);
  for (int a = 0, first = 0; a < world.size; ++a) {
    if (a > 0 && world.node_of[a] != world.node_of[a - 1]) first = a;
    const int local = layout.per_node[world.node_of[a]];
    sockets[a].resize(local, -1);
    for (int b = first; b < a; ++b) {
      int pair[2];
      if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0) return {"socketpair failed"};
      sockets[a][b - first] = pair[0];
      sockets[b][a - first] = pair[1];
    }
  }

  std::vector<std::pair<pid_t, int>> children;
  for (int r = 0; r < world.size; ++r) {
    int out[2];
    if (pipe(out) != 0) return {"pipe failed"};
    const pid_t pid = fork();
    if (pid == 0) {
      if (layout.cpus > 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        for (int c = 0; c < layout.cpus; ++c) CPU_SET(c, &set);
        sched_setaffinity(0, sizeof(set), &set);
      }
      std::string text;
      {
        BoardControl control(world_of(layout.per_node, nodes, r), board);
        text = body(control, layout.sockets ? sockets[r] : std::vector<int>());
      }
      (void)!write(out[1], text.data(), text.size());
      _exit(0);
    }
    close(out[1]);
    children.emplace_back(pid, out[0]);
  }
  for (const auto& list : sockets)
    for (int s : list)
      if (s >= 0) close(s);

  // All at once: who waits for a rank that was killed must come to know.
  std::vector<std::string> results(children.size());
  for (size_t left = children.size(); left > 0;) {
    std::vector<pollfd> fds;
    for (const auto& [pid, out] : children) fds.push_back({out, POLLIN, 0});
    poll(fds.data(), fds.size(), -1);
    for (size_t r = 0; r < children.size(); ++r) {
      auto& [pid, out] = children[r];
      if (out < 0 || fds[r].revents == 0) continue;
      std::array<char, 4096> buffer;
      const ssize_t n = read(out, buffer.data(), buffer.size());
      if (n > 0) {
        results[r].append(buffer.data(), static_cast<size_t>(n));
        continue;
      }
      close(out);
      out = -1;
      --left;
      int status = 0;
      waitpid(pid, &status, 0);
      if (WIFSIGNALED(status)) {
        results[r] = "signal " + std::to_string(WTERMSIG(status));
        board.broken = true;
      }
      if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
        results[r] += "exit " + std::to_string(WEXITSTATUS(status));
    }
  }
  munmap(shared, sizeof(Board));
  return results;
}

}  // namespace trainlaunch::testing
