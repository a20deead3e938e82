#include "comm/segment.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace trainlaunch {

namespace {

constexpr size_t huge_page = size_t{2} << 20;

std::string mib(size_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

}  // namespace

Segment::Segment(Segment&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Segment::~Segment() {
  if (data_) munmap(data_, size_);
}

Result<Segment> Segment::create(size_t bytes) {
  const size_t page = bytes >= huge_page ? huge_page : 4096;
  Segment s;
  s.size_ = (bytes + page - 1) / page * page;
  s.fd_ = Fd(memfd_create("train-launch", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!s.fd_) return fail_errno("cannot create shared memory");
  if (ftruncate(s.fd_.get(), static_cast<off_t>(s.size_)) != 0)
    return fail_errno("no shared memory of " + mib(bytes));
  if (fcntl(s.fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return fail_errno("cannot seal shared memory");
  void* p = mmap(nullptr, s.size_, PROT_READ | PROT_WRITE, MAP_SHARED, s.fd_.get(), 0);
  if (p == MAP_FAILED) return fail_errno("cannot map " + mib(bytes) + " of shared memory");
  s.data_ = static_cast<std::byte*>(p);
  (void)madvise(p, s.size_, MADV_HUGEPAGE);  // few systems give them to shared memory
  // Touched now: memory that is not there is an error here, not a signal later.
  if (madvise(p, s.size_, MADV_POPULATE_WRITE) != 0) {
    if (errno != EINVAL) return fail_errno("no shared memory of " + mib(bytes));
    std::memset(p, 0, s.size_);  // Linux before 5.14
  }
  return s;
}

Result<Segment> Segment::attach(const Fd& fd, size_t bytes) {
  struct stat st;
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (fstat(fd.get(), &st) != 0 || seals < 0) return fail_errno("not shared memory");
  if (static_cast<uint64_t>(st.st_size) < bytes || !(seals & F_SEAL_SHRINK))
    return fail("shared memory of another rank is too small or could shrink");
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (p == MAP_FAILED) return fail_errno("cannot map " + mib(bytes) + " of another rank");
  Segment s;
  s.data_ = static_cast<std::byte*>(p);
  s.size_ = bytes;
  return s;
}

Status send_note(int socket, const Note& note, int fd, Deadline deadline) {
  Note copy = note;
  iovec data{&copy, sizeof(copy)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &fd, sizeof(fd));
  }
  for (;;) {
    if (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return {};
    if (errno == EAGAIN) {
      if (deadline.over()) return fail("timed out");
      pollfd p{socket, POLLOUT, 0};
      poll(&p, 1, deadline.poll_ms());
    } else if (errno != EINTR) {
      return fail_errno("cannot pass a descriptor");
    }
  }
}

Result<Received> receive_note(int socket, const Note& expected, Deadline deadline) {
  for (;;) {
    Received r;
    iovec data{&r.note, sizeof(r.note)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) {
      if (deadline.over()) return fail("timed out");
      pollfd p{socket, POLLIN, 0};
      poll(&p, 1, deadline.poll_ms());
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno("cannot receive a descriptor");
    if (n == 0) return fail("it closed its socket");
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      int raw = -1;
      std::memcpy(&raw, CMSG_DATA(c), sizeof(raw));
      r.fd = Fd(raw);
    }
    if (n != sizeof(r.note)) return fail("a message of the wrong size");
    if (r.note.generation < expected.generation) continue;
    if (r.note.about != expected.about || r.note.serial != expected.serial)
      return fail("the ranks of this node do not make the same calls");
    return r;
  }
}

}  // namespace trainlaunch
