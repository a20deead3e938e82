// Messages over a stream socket that never blocks: bytes in, bytes out, frames between.
// A frame is the body's length (u32, little-endian), the body, and, once sealed, its MAC.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/result.h"
#include "boot/auth.h"
#include "boot/message.h"

namespace trainlaunch {

class Conn {
 public:
  // Takes the socket and makes it non-blocking. Bodies longer than `limit` are refused, and no more
  // than one such frame is ever held unread.
  Conn(Fd fd, size_t limit);

  int fd() const { return fd_.get(); }
  short events() const;  // for poll(2)

  // From here on frames carry MACs, and bodies may have `limit` bytes.
  void seal(const Secret& out, const Secret& in, size_t limit);

  void limit(size_t bytes) { limit_ = bytes; }

  void send(const Message& m);
  void send_raw(std::string_view bytes);
  Status flush();  // as much as the socket takes now
  bool flushed() const { return sent_ == out_.size(); }

  Result<bool> fill();  // what the socket has now; false when the peer has closed
  std::optional<std::string> take(size_t n);  // raw bytes, for the handshake
  Result<std::optional<Message>> next();

 private:
  size_t unread() const { return in_.size() - read_; }

  Fd fd_;
  size_t limit_;
  std::string in_, out_;
  size_t read_ = 0, sent_ = 0;
  std::optional<Seal> seal_out_, seal_in_;
};

}  // namespace trainlaunch
