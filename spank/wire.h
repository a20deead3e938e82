// What passes between gpu_bind.so and the planner it runs, gpu-bind. The plugin starts
//
//   gpu-bind plan --format=wire --config=FILE --ranks=N --node=NAME --nodelist=LIST
//                 [--cores=LIST] [--gpus=LIST] [--devices=LIST] [--exclusive] [--asked=LIST]
//                 [--requested=no] [--environment=LINES] [--policy=... and so on]
//
// --gpus is SLURM_STEP_GPUS; --devices is what Slurm gave the step as CUDA_VISIBLE_DEVICES (or
// ROCR_VISIBLE_DEVICES): its k-th word names the k-th GPU of --gpus, in whatever form Slurm uses
// (under ConstrainDevices numbers restart at 0), and the plan answers in the same words.
// --environment is given for the report `doctor`: what the ranks have of the variables that it
// looks at, NAME=VALUE in each line.
// --requested=no: no option or variable of ours was given; with bind=on-request in the
// configuration the answer is then an empty plan.
//
// as the job's user with a fixed environment, and reads the answer from its standard output: lines
// of text, in this order, bounded as below.
//
//   gpu-bind-wire 1
//   digest HEX                 of the plan, its rails and its ports: digest() of bind.h
//   say TEXT                   printed once for the node (a report asked for it)
//   warn TEXT                  printed once for the node, always
//   rank I                     opens the part of local rank I; I counts up from 0
//   cpus LIST                  the rank's CPUs, Linux list form; absent: leave the mask alone
//   mems preferred|bind LIST   its memory nodes; absent: leave the policy alone
//   env keep NAME=VALUE        only if neither the rank's environment nor NCCL's configuration
//   files
//                              have such a variable
//   env set NAME=VALUE         whatever they have
//   env unset NAME             a device mask that would be applied beside the plan's
//   say TEXT                   printed by this rank
//   end                        the last line; without it the answer is void
//
// A planner that cannot plan exits 1 with the reason as its one "error TEXT" line.
#pragma once

#include <cstddef>
#include <string_view>

namespace gpu_bind_wire {

inline constexpr int version = 1;
inline constexpr size_t max_bytes = 256 * 1024;  // of a whole answer
inline constexpr size_t max_line = 4096;
inline constexpr size_t max_ranks = 1024;  // local ranks of one node
inline constexpr size_t max_env = 64;      // variables of one rank
inline constexpr int max_cpus = 8192;      // CPU numbers from 0
inline constexpr int max_mems = 1024;      // memory node numbers from 0

// The only names the plugin sets on the planner's word, anything else in an answer is dropped:
// device masks, and what configures the libraries that carry a job's data. GPU_BIND_PLAN (the
// digest), GPU_BIND_SET (the names that were set) and GPU_BIND_STEP (the planner's arguments but
// for --nodelist, for `gpu-bind check`) are the plugin's own.
inline constexpr std::string_view device_variables[] = {
    "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",  "GPU_DEVICE_ORDINAL",
};
inline constexpr std::string_view network_prefixes[] = {
    "NCCL_", "RCCL_", "OFI_NCCL_", "NVSHMEM_", "UCX_", "FI_", "GLOO_", "MPICH_OFI_",
};
inline constexpr size_t max_name = 64;

constexpr bool is_device_variable(std::string_view name) {
  for (const std::string_view known : device_variables)
    if (name == known) return true;
  return false;
}

// NCCL_CONF_FILE is not among them: it would put away the user's own file.
constexpr bool is_network_variable(std::string_view name) {
  if (name.size() > max_name || name == "NCCL_CONF_FILE") return false;
  for (const char c : name)
    if (!((c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_')) return false;
  for (const std::string_view prefix : network_prefixes) {
    size_t same = 0;
    while (same < prefix.size() && same < name.size() && name[same] == prefix[same]) ++same;
    if (same == prefix.size() && name.size() > same) return true;
  }
  return false;
}

}  // namespace gpu_bind_wire
