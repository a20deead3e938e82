// Communicators whose memory is a device's.
//
//   single   a world of one
//   nccl     every rank has a GPU of its own
//   staged   else: the data goes through a communicator for host memory (shared, network)
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm.h"

namespace trainlaunch {

// What a communicator has the device compute, enqueued on a Stream.
struct DeviceMath {
  // dst = parts[0] + parts[1] + ..., f32; dst may be one of them
  std::function<void(Stream&, View dst, std::span<const View> parts)> sum;
  std::function<void(Stream&, View from, View to)> copy;  // between f32 and bf16, or the same type
  std::function<void(Stream&, View)> clear;
};

struct DeviceParts {
  Device& device;
  DeviceMath math;
  // Equal on two ranks exactly if they have the same GPU.
  std::string identity;
  // Makes the communicator of ranks that have a GPU each; null where it is not built, or its
  // library is not here.
  std::function<Result<std::unique_ptr<Comm>>(Control&, const CommOptions&, DeviceParts)> nccl;
};

Result<std::unique_ptr<Comm>> make_device_comm(Control& control,
                                               const std::vector<int>& local_sockets,
                                               const CommOptions& options, DeviceParts parts);

// The last one by itself. Two copies of everything pass between device and host, one call after
// the other: for two ranks on one GPU, and where there is no NCCL.
std::unique_ptr<Comm> make_staged_comm(std::unique_ptr<Comm> inner, Device& device,
                                       const CommOptions& options);

}  // namespace trainlaunch
