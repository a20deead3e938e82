// What a training run is told: the options of `train-launch train`, filled from the configuration
// file and the command line by launcher/options.h, which checks the bounds given there. The
// defaults below are the documented ones.
#pragma once

#include <cstdint>
#include <string>

#include "optim/optim.h"

namespace trainlaunch {

struct ModelConfig {
  int layers = 6;
  int heads = 6;  // divides width
  int width = 384;
  int context = 256;  // bytes seen at once
};

struct DataConfig {
  std::string path;     // a text file; required
  bool ledger = false;  // keep which samples each step used
};

// Between which runs equal bits are promised: of as many ranks and threads, or of any number of
// either (then micro_batches says into how many parts a global batch is cut).
enum class Deterministic : uint8_t { same_ranks, canonical };

struct LoopConfig {
  int64_t steps = 1000;
  int64_t global_batch = 32;  // sequences per step, whatever the number of ranks
  int64_t micro_batch = 0;    // sequences per forward pass; 0: chosen
  Recompute recompute = Recompute::none;
  int64_t micro_batches = 0;  // of a global batch, when canonical: a power of two
  uint64_t seed = 1337;
  int64_t log_every = 10;    // steps
  int64_t eval_every = 250;  // steps; 0: never
  int64_t eval_batches = 20;
  int threads = 0;         // per rank; 0: the CPUs this rank may use
  double peak_tflops = 0;  // of a rank, for MFU; 0: found out
  double deadline = 120;   // seconds a collective may wait for the other ranks
};

struct OptimConfig {
  double lr = 1e-3;
  double min_lr = 1e-4;
  int64_t warmup = 100;  // steps
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;  // of the global gradient norm; 0: off
};

struct ParallelConfig {
  ShardPolicy shard = ShardPolicy::optimizer;
  double bucket_mib = 0;  // of gradients reduced together; 0: measured
};

// How a copy of the weights is rounded to bf16.
enum class Rounding : uint8_t { nearest, stochastic };

struct PrecisionConfig {
  DType compute = DType::f32;  // or bf16: of activations and of the weights that products read
  DType wire = DType::f32;     // or bf16: of gradients between nodes
  Rounding rounding = Rounding::nearest;
};

// What a loss or norm far above those before it does, and one that is not finite.
enum class OnSpike : uint8_t { ignore, say, skip, roll_back };
enum class OnNan : uint8_t { skip, roll_back, stop };

struct GuardConfig {
  OnSpike spike = OnSpike::say;
  double loss_z = 7, norm_z = 7;  // a spike is so many deviations above the mean; 0: none is
  int64_t window = 128;           // steps that say what is usual
  OnNan nan = OnNan::skip;
  int64_t rollbacks = 10;  // of a run, before it ends
};

// What a checkpoint that cannot be written does to the run.
enum class OnSaveError : uint8_t { go_on, abort };

struct CheckpointConfig {
  int64_t every = 500;      // steps; 0: at the end only
  int keep = 3;             // the newest ones; 0: all; never fewer than two
  int64_t keep_every = 0;   // steps: multiples of it are kept for good; 0: none
  int writers = 8;          // ranks of a node that write at a time; 0: all
  bool verify = true;       // read each one back
  int attempts = 10;        // starts from one step without a new checkpoint; 0: no limit
  std::string local_dir;    // of each node, for checkpoints of its own; empty: none
  int64_t local_every = 0;  // steps between those; 0: none
  OnSaveError on_error = OnSaveError::go_on;
};

struct RunConfig {
  std::string run_dir = "run";
  std::string resume = "auto";  // auto: the newest good checkpoint, if any; no; or a step
  double memory = 0;            // GiB that a rank may use; 0: what the system allows
  std::string device = "auto";  // cpu, cuda; auto: cuda where it is built in and present
  Deterministic deterministic = Deterministic::same_ranks;
  bool profile = false;  // a table of where the time went, at the end
  std::string trace;     // a file for a Chrome trace; empty: none
  ModelConfig model;
  DataConfig data;
  LoopConfig train;
  OptimConfig optim;
  ParallelConfig parallel;
  PrecisionConfig precision;
  GuardConfig guard;
  CheckpointConfig checkpoint;
};

}  // namespace trainlaunch
