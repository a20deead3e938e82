// What passes between gpu_bind.so and the planner it runs, gpu-bind. The plugin starts
//
//   gpu-bind plan --format=wire --config=FILE --ranks=N --node=NAME --nodelist=LIST
//                 [--cores=LIST] [--gpus=LIST] [--devices=LIST] [--exclusive] [--asked=LIST]
//                 [--requested=no] [--policy=... and so on]
//
// --gpus is SLURM_STEP_GPUS; --devices is what Slurm gave the step as CUDA_VISIBLE_DEVICES (or
// ROCR_VISIBLE_DEVICES): its k-th word names the k-th GPU of --gpus, in whatever form Slurm uses
// (under ConstrainDevices numbers restart at 0), and the plan answers in the same words.
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
//   env keep|set NAME=VALUE    keep: only if the rank's environment has no such variable
//   say TEXT                   printed by this rank
//   end                        the last line; without it the answer is void
//
// A planner that cannot plan exits 1 with the reason as its one "error TEXT" line.
#pragma once

#include <cstddef>

namespace gpu_bind_wire {

inline constexpr int version = 1;
inline constexpr size_t max_bytes = 256 * 1024;  // of a whole answer
inline constexpr size_t max_line = 4096;
inline constexpr size_t max_ranks = 1024;  // local ranks of one node
inline constexpr size_t max_env = 32;      // variables of one rank
inline constexpr int max_cpus = 8192;      // CPU numbers from 0
inline constexpr int max_mems = 1024;      // memory node numbers from 0

// The only names the plugin sets on the planner's word; anything else in an answer is dropped.
// GPU_BIND_PLAN (the digest), GPU_BIND_SET (the names that were set) and GPU_BIND_STEP (the
// planner's arguments but for --nodelist, for `gpu-bind check`) are the plugin's own.
inline constexpr const char* variables[] = {
    "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",  "NCCL_IB_HCA",          "NCCL_SOCKET_IFNAME",
    "NCCL_TOPO_FILE",    "GLOO_SOCKET_IFNAME",   "UCX_NET_DEVICES",
};

}  // namespace gpu_bind_wire
