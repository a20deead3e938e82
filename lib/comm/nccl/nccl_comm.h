// The communicator of ranks that have a GPU each, by NCCL.
//
// NCCL itself promises neither an order of sums nor f32 sums of bf16 numbers. So only sums in f32
// whose order is not asked for (SumOrder::nodes) are NCCL's, whose order is fixed for one set of
// ranks, machines and one NCCL; a tree, and bf16 on the wire, are an exchange of parts and sums of
// ours, by rank, in f32.
//
// wait() blocks the host until the device has done its part, as Comm promises.
#pragma once

#include <memory>

#include "comm/device_comm.h"

namespace trainlaunch {

// NCCL's functions: comm/nccl/nccl_library.h, which needs NCCL's header.
struct NcclLibrary;
// An error where it is not installed, or older than the header that this was compiled with.
Result<std::shared_ptr<const NcclLibrary>> open_nccl();

// Collective. Rank 0 makes the id, which the control channel carries to the others.
Result<std::unique_ptr<Comm>> make_nccl_comm(const NcclLibrary& nccl, Control& control,
                                             const CommOptions& options, DeviceParts parts);

}  // namespace trainlaunch
