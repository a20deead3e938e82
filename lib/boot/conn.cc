#include "boot/conn.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace trainlaunch {
namespace {

constexpr size_t chunk = 64 * 1024;

// Forgets the consumed front of a buffer when that is the larger part of it.
void compact(std::string& buffer, size_t& done) {
  if (done < buffer.size() / 2 && done < chunk) return;
  buffer.erase(0, done);
  done = 0;
}

}  // namespace

Conn::Conn(Fd fd, size_t limit) : fd_(std::move(fd)), limit_(limit) {
  const int flags = fcntl(fd_.get(), F_GETFL);
  fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK);
}

short Conn::events() const { return static_cast<short>(POLLIN | (flushed() ? 0 : POLLOUT)); }

void Conn::seal(const Secret& out, const Secret& in, size_t limit) {
  seal_out_.emplace(out);
  seal_in_.emplace(in);
  limit_ = limit;
}

void Conn::send_raw(std::string_view bytes) { out_.append(bytes); }

void Conn::send(const Message& m) {
  const std::string body = encode(m);
  std::string frame;
  frame.reserve(4 + body.size() + mac_bytes);
  put_u32(frame, static_cast<uint32_t>(body.size()));
  frame += body;
  if (seal_out_) frame += seal_out_->next(frame);
  out_ += frame;
}

Status Conn::flush() {
  while (!flushed()) {
    const ssize_t n = ::send(fd_.get(), out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n < 0) return fail_errno("control channel");
    sent_ += static_cast<size_t>(n);
  }
  compact(out_, sent_);
  return {};
}

Result<bool> Conn::fill() {
  const size_t most = 4 + limit_ + mac_bytes;
  while (unread() < most) {
    const size_t old = in_.size();
    const size_t want = std::min(chunk, most - unread());
    in_.resize(old + want);
    const ssize_t n = ::recv(fd_.get(), in_.data() + old, want, 0);
    in_.resize(old + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n == 0) return false;
    if (n > 0) continue;
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
    return fail_errno("control channel");
  }
  return true;
}

std::optional<std::string> Conn::take(size_t n) {
  if (unread() < n) return std::nullopt;
  std::string bytes = in_.substr(read_, n);
  read_ += n;
  compact(in_, read_);
  return bytes;
}

Result<std::optional<Message>> Conn::next() {
  if (unread() < 4) return std::nullopt;
  const std::string_view rest = std::string_view(in_).substr(read_);
  const size_t body = get_u32(rest);
  if (body > limit_) return fail("control channel: a frame of " + std::to_string(body) + " bytes");
  const size_t frame = 4 + body;
  const size_t whole = frame + (seal_in_ ? mac_bytes : 0);
  if (rest.size() < whole) return std::nullopt;
  if (seal_in_ && !seal_in_->check(rest.substr(0, frame), rest.substr(frame, mac_bytes)))
    return fail("control channel: a frame that fails its check");
  auto m = decode(rest.substr(4, body));
  if (!m) return forward(m);
  read_ += whole;
  compact(in_, read_);
  return std::optional<Message>(std::move(*m));
}

}  // namespace trainlaunch
