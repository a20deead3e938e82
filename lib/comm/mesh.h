// Connections between all ranks, by Gloo over TCP. Nothing of Gloo is seen outside mesh.cc, and its
// exceptions end there as errors that name the peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "comm/call.h"

namespace trainlaunch {

// A message on its way. Its memory must stay until finish() or until the Mesh is closed.
class Transfer {
 public:
  struct Impl;
  explicit Transfer(std::unique_ptr<Impl> impl);
  Transfer(Transfer&&) noexcept;
  Transfer& operator=(Transfer&&) noexcept;
  ~Transfer();
  Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

class Mesh {
 public:
  virtual ~Mesh() = default;

  // Messages between two ranks match by `slot`; each slot is used once in each direction. What is
  // received into must be as large as what is sent. Neither call waits for the other side.
  virtual Result<Transfer> send(int rank, uint64_t slot, const void* p, size_t bytes) = 0;
  virtual Result<Transfer> receive(int rank, uint64_t slot, void* p, size_t bytes) = 0;
  virtual Status finish(Transfer& transfer, Deadline deadline) = 0;

  // Any thread: makes finish() return.
  virtual void stop(Stop why) noexcept = 0;
  // Hangs up on everyone; what is pending fails here and there.
  virtual void close() noexcept = 0;
};

// Collective. `address` is the local one to listen on.
Result<std::unique_ptr<Mesh>> connect_mesh(Control& control, const std::string& address,
                                           Deadline deadline);

}  // namespace trainlaunch
