// Memory that several processes of a node map, and the passing of its descriptor between them. It
// has no name that others could open, and is gone with its last user.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/base.h"
#include "base/file.h"

namespace trainlaunch {

class Segment {
 public:
  // New memory, zeroed and touched, whose size nobody can change any more.
  static Result<Segment> create(size_t bytes);
  // Another process's memory, by the descriptor that it sent.
  static Result<Segment> attach(const Fd& fd, size_t bytes);

  Segment() = default;
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  const Fd& fd() const { return fd_; }  // of memory that was created here
  void close_fd() { fd_ = Fd(); }

 private:
  Fd fd_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// What one rank of a node tells another over their socket, with or without a descriptor.
struct Note {
  enum class About : uint32_t { control, process, memory };
  About about = About::control;
  int32_t generation = 0;  // notes of an earlier generation are thrown away
  uint64_t serial = 0;     // counts the allocations
  uint64_t bytes = 0;      // of the memory; 0 with no descriptor: the sender failed
};

// `fd` may be -1.
Status send_note(int socket, const Note& note, int fd, Deadline deadline);

struct Received {
  Note note;
  Fd fd;
};
Result<Received> receive_note(int socket, const Note& expected, Deadline deadline);

}  // namespace trainlaunch
