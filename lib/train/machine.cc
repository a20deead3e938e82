#include "train/machine.h"

#include <config.h>

#ifdef HAVE_CUDA_OPS
#include "base/cuda/cuda_device.h"
#include "comm/device_comm.h"
#include "ops/cuda/cuda_ops.h"
#endif
#ifdef HAVE_NCCL
#include "comm/nccl/nccl_comm.h"
#endif

namespace trainlaunch {

namespace {

Result<Machine> make_host_machine(const MachineWish& wish) {
  if (wish.type != DType::f32 && wish.type != DType::bf16)
    return fail(std::string("processors compute in f32 and bf16, not in ") + name_of(wish.type));
  Machine m;
  m.device = make_host_device();
  m.ops = make_cpu_ops(wish.threads, wish.bits, wish.type);
  return m;
}

#ifdef HAVE_CUDA_OPS

Result<Machine> make_cuda_machine(const MachineWish& wish) {
  // A rank that sees one GPU was given it; one that sees several has the one of its own number.
  const int index = cuda_devices() == 1 ? 0 : wish.local_rank;
  auto device = make_cuda_device(index);
  if (!device) return fail("device=cuda: " + device.error().what, exit_code::usage);
  auto ops = make_cuda_ops(index, wish.type);
  if (!ops) return forward(ops);
  return Machine{std::move(*device), std::move(*ops)};
}

bool is_cuda(const Device& device) { return !device.host_readable(); }

DeviceMath math_by(Ops& ops) {
  DeviceMath math;
  math.sum = [&ops](Stream& s, View dst, std::span<const View> parts) { ops.sum(s, dst, parts); };
  math.copy = [&ops](Stream& s, View from, View to) { ops.copy(s, from, to); };
  math.clear = [&ops](Stream& s, View v) { ops.fill(s, v, 0); };
  return math;
}

Result<std::unique_ptr<Comm>> make_cuda_comm(Device& device, Ops& ops, Control& control,
                                             const std::vector<int>& local_sockets,
                                             const CommOptions& options) {
  auto identity = cuda_identity(device);
  if (!identity) return forward(identity);
  DeviceParts parts{device, math_by(ops), std::move(*identity), {}};
#ifdef HAVE_NCCL
  // A world of one needs none.
  if (control.world().size > 1) {
    if (auto nccl = open_nccl()) {
      parts.nccl = [library = *nccl](Control& c, const CommOptions& o, DeviceParts p) {
        return make_nccl_comm(*library, c, o, std::move(p));
      };
    }
  }
#endif
  return make_device_comm(control, local_sockets, options, std::move(parts));
}

#endif

}  // namespace

Result<Machine> make_machine(const MachineWish& wish) {
  if (wish.device != "auto" && wish.device != "cpu" && wish.device != "cuda")
    return fail("device=" + wish.device + " is not one of auto, cpu, cuda", exit_code::usage);
#ifdef HAVE_CUDA_OPS
  if (wish.device == "cuda" || (wish.device == "auto" && cuda_devices() > 0))
    return make_cuda_machine(wish);
#else
  if (wish.device == "cuda")
    return fail("device=cuda: this build has no CUDA operations; use device=cpu", exit_code::usage);
#endif
  return make_host_machine(wish);
}

Result<std::unique_ptr<Comm>> make_comm_on([[maybe_unused]] Device& device,
                                           [[maybe_unused]] Ops& ops, Control& control,
                                           const std::vector<int>& local_sockets,
                                           const CommOptions& options) {
#ifdef HAVE_CUDA_OPS
  if (is_cuda(device)) return make_cuda_comm(device, ops, control, local_sockets, options);
#endif
  return make_comm(control, local_sockets, options);
}

std::string built_in() {
#if defined HAVE_NCCL
  return "with operations for CUDA, and NCCL";
#elif defined HAVE_CUDA_OPS
  return "with operations for CUDA, without NCCL";
#else
  return "for processors, without operations for CUDA";
#endif
}

}  // namespace trainlaunch
