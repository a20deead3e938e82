// A GPU as a Device, on the CUDA runtime. CUDA's own headers stay in cuda_device.cc; what needs the
// handles takes them from native(): cudaStream_t of a Stream, cudaEvent_t of an Event.
#pragma once

#include <memory>

#include "base/base.h"

namespace trainlaunch {

// The index-th of the GPUs that this process sees (CUDA_VISIBLE_DEVICES counts). An error when
// there is no driver, no GPU, or not that many.
//
// Work fails later than it is enqueued: the first error of a Stream is kept and told by every Event
// recorded on it from then on. Host memory of upload and download should be pinned; otherwise the
// copy is right but the host waits for it.
Result<std::unique_ptr<Device>> make_cuda_device(int index);

// How many GPUs this process sees; 0 without a driver.
int cuda_devices();

// A name that two processes, in containers or not, have for the same GPU, and for no other.
Result<std::string> cuda_identity(const Device& device);

// Makes an error of what was to be enqueued on a Stream of such a device the Stream's own, if it
// has none yet.
void keep_error(Stream& stream, Error error);

}  // namespace trainlaunch
