// The ranks of one node that share memory, or one rank for itself: memory that all of them map, and
// the words by which they wait for each other.
//
// A collective consists of meetings (all ranks of the node have come this far) and ends by leaving:
// a rank that has left touches the others' memory no more. Waiting spins, if every rank can have a
// processor to itself, for as long as it costs to sleep and be woken, or less where the rank
// computes meanwhile; and then sleeps on the word in the kernel.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/call.h"
#include "comm/segment.h"

namespace trainlaunch {

class Node {
 public:
  static constexpr size_t stage_bytes = size_t{256} << 10;

  // A rank for itself.
  static std::unique_ptr<Node> alone(const World& world);
  // All ranks of a node, in two halves: join() maps the common words and writes `nonce` there; when
  // every rank of the node has joined, verify() reads what the others wrote (`nonces`, by local
  // rank). `sockets` are used until the Node is gone.
  static Result<std::unique_ptr<Node>> join(const World& world, const std::vector<int>& sockets,
                                            uint64_t nonce, Deadline deadline);
  Status verify(std::span<const uint64_t> nonces);
  ~Node();

  int first() const { return first_; }  // rank of the first rank here
  int count() const { return count_; }  // how many share memory here
  int me() const { return me_; }        // index of the own

  // Memory of `bytes` on every rank of the node: where each one's is mapped here, all of it
  // writable.
  Result<std::vector<std::byte*>> alloc(std::string_view what, size_t bytes, Deadline deadline);
  // Scratch memory that all may write, in two halves.
  std::byte* stage(int half) const;

  // While one lives, the rank's own thread waits, and needs no processor.
  class Idle {
   public:
    explicit Idle(Node& node) : node_(node) { node_.idle_.store(true, std::memory_order_relaxed); }
    ~Idle() { node_.idle_.store(false, std::memory_order_relaxed); }
    Idle(const Idle&) = delete;
    Idle& operator=(const Idle&) = delete;

   private:
    Node& node_;
  };

  // Returns when all have come; the same calls must meet.
  Status meet(const Call& call);
  void leave();
  // Returns when all have left the call with this ticket; every call is left once.
  Status wait_left(Ticket ticket, Deadline deadline);

  // Any thread: makes waits on this rank return, for a reason.
  void stop(Stop why) noexcept;
  // Any thread: makes waits of all ranks of the node return; the first text is what they see.
  void abort(std::string_view text) noexcept;

 private:
  struct Word;
  struct Line;
  struct Common;

  Node(const World& world, int first, int count, int me);
  Status exchange_processes(Deadline deadline);
  Line* lines() const;
  bool spin(const Word& word, uint32_t all) const;
  Status wait(Word& word, std::atomic<uint32_t> Line::*progress, uint32_t target,
              Deadline deadline);
  Status check_dead(std::atomic<uint32_t> Line::*progress, uint32_t target) const;
  std::string late(std::atomic<uint32_t> Line::*progress, uint32_t target) const;
  tl::unexpected<Error> peer_failed() const;

  World world_;
  int first_, count_, me_;
  uint32_t generation_;
  std::vector<Fd> sockets_;    // by local rank
  std::vector<Fd> processes_;  // by local rank: readable when the process has ended
  Segment common_memory_;
  Common* common_ = nullptr;
  Clock::duration spin_idle_{0}, spin_busy_{0};  // how long
  std::atomic<bool> idle_{false};
  uint32_t meetings_ = 0;
  uint32_t departures_ = 0;
  std::atomic<Stop> stop_{Stop::none};
  uint64_t allocations_ = 0;
  std::vector<Segment> segments_;
  std::unique_ptr<Device> host_;                // of a rank for itself
  std::vector<std::unique_ptr<Block>> blocks_;  // its memory
  std::unique_ptr<std::byte[]> own_stage_;
};

}  // namespace trainlaunch
