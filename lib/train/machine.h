// What a rank computes on: processors, or a GPU where the program was built for one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "boot/boot.h"
#include "comm/comm.h"
#include "ops/ops.h"

namespace trainlaunch {

struct MachineWish {
  std::string device = "auto";  // cpu, cuda; auto: cuda where it is built in and present
  DType type = DType::f32;      // of activations and of the weights that products read
  int local_rank = 0;           // chooses among the GPUs that this process sees
  int threads = 1;              // on processors
  SameBits bits = SameBits::same_threads;
};

struct Machine {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
};

Result<Machine> make_machine(const MachineWish& wish);

// The communicator for memory of that device; both outlive it. Collective.
Result<std::unique_ptr<Comm>> make_comm_on(Device& device, Ops& ops, Control& control,
                                           const std::vector<int>& local_sockets,
                                           const CommOptions& options);

// "CUDA operations and NCCL are built in", for --version.
std::string built_in();

}  // namespace trainlaunch
