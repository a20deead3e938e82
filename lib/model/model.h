// lib/model: forward and backward of the models, written once over lib/ops. This header is the
// folder's front door.
//
//   ParamSpec, Layout   the flat parameter space: tiles of 1,024 elements, the same for every world
//   Shard               where a model finds its weights and leaves its gradients (lib/optim has the
//                       policies); the model does not know who owns what
//   Model               parameters, memory, forward, backward, text generation
//
// A parameter's name is ours; `hf` is the name and the memory order of Hugging Face's GPT-2
// checkpoints (GPT2LMHeadModel), which keep a linear map's weight as [in, out] (Conv1D), as we do:
// no tensor is transposed on the way in or out. lm_head.weight there is the tied transformer.wte.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/base.h"
#include "ops/ops.h"

namespace trainlaunch {

// Groups differ in what the optimizer does with them.
enum class Group : uint8_t { decay, no_decay };

struct Init {
  enum Kind : uint8_t { zero, one, normal } kind = zero;
  float stddev = 0.0f;
};

struct ParamSpec {
  std::string name, hf;
  std::vector<int64_t> shape;
  Init init;
  Group group = Group::decay;
  int block = 0;          // parameters of one block are acquired together; counted from 0
  int contributions = 1;  // how many parts of the backward pass add to its gradient
  int64_t size() const;
};

// Parameters in one flat space in the order in which their gradients become ready: last block
// first, and what is used at both ends (a tied embedding) last. Each parameter begins at a tile;
// the rest of its last tile is zero, belongs to it, and is never part of a checkpoint. Knows no
// world size: owners get whole tiles.
struct Layout {
  static constexpr int64_t tile = 1024;  // elements

  struct Entry {
    int param;       // index into the specs
    int64_t offset;  // elements from the start of the space, a multiple of tile
    int64_t size;    // elements without the rest of the last tile
    int64_t tiles;
    int64_t whole() const { return tiles * tile; }  // elements
  };
  std::vector<Entry> entries;  // by rising offset
  std::vector<int> entry_of;   // spec index -> index into entries
  int64_t tiles = 0;

  // `specs` in the order in which the forward pass first uses them.
  static Layout plan(std::span<const ParamSpec> specs);
  int64_t elements() const { return tiles * tile; }
  const Entry& of(int param) const { return entries[entry_of[param]]; }
};

// Initial weights, written over the whole flat space on the host: a function of the seed, the
// parameter's name and the element alone (Philox), so of no world size. f32 [layout.elements()].
void initialise(std::span<const ParamSpec> specs, const Layout& layout, uint64_t seed, View flat);
// The same for a part of one parameter, from element `offset` of it on, a multiple of 4. f32 [n].
void initialise(const ParamSpec& spec, uint64_t seed, int64_t offset, View part);

// A run of a tensor that a rank owns or wants: `slot` is "weight", "m" or "v"; offset and length in
// elements of the flattened tensor.
struct Piece {
  std::string tensor, slot;
  int64_t offset = 0, length = 0;
  View mem;  // f32 [length], memory of the device
};

// Where contributions to a gradient are added up.
struct GradientSum {
  View to;
  bool begun = false;  // else nothing is there yet, not even zeros
};

// What the optimizer is told for one step.
struct StepScalars {
  double lr = 0;
  double clip = 0;    // of the global gradient norm; 0: none
  double tokens = 0;  // unmasked targets of the global batch: gradients are divided by it
  double norm_limit = std::numeric_limits<double>::infinity();  // a larger norm changes nothing
};
struct StepStats {
  double grad_norm = 0;  // of the mean gradient, before clipping
  bool skipped = false;  // not finite, or above the limit: weights and Adam's count are unchanged
};

class Shard {
 public:
  virtual ~Shard() = default;

  // Weights of a block, for reading, from acquire until release. The stream orders it. A pass goes
  // through the blocks upwards or downwards, one at a time, so that the next one's weights can be
  // on their way; besides it, a block that holds what is used at both ends may be acquired.
  virtual void acquire(Stream& stream, int block) = 0;
  virtual void release(Stream& stream, int block) = 0;
  virtual View weight(int param) = 0;  // of the parameter's shape and Ops::dtype()

  // A step is: begin_step, then for each micro-batch begin_micro and a backward pass, then step.
  virtual void begin_step(Stream& stream) = 0;
  virtual void begin_micro(Stream& stream, bool last) = 0;
  // Gradients are accumulated into; of Ops::wide(). One of these two is asked for anew for each
  // contribution, and ready() says that it has been enqueued. After the last one (of the last
  // micro-batch, or of each) the parameter's reduction may start. They become ready in the layout's
  // order, but that a parameter may come before the one that stands before it.
  virtual View grad(int param) = 0;  // zeros, if nothing was added yet
  // For a contribution to every element, which is written if it is the first, and else added.
  virtual GradientSum grad_sum(int param) = 0;
  virtual void ready(Stream& stream, int param) = 0;
  // Ranks without a micro-batch call this instead of begin_micro: their gradient is zero. Where all
  // ranks must run equally many passes, they run a blank one instead.
  virtual void no_micro(Stream& stream) = 0;
  virtual Result<StepStats> step(Stream& stream, const StepScalars& scalars) = 0;

  virtual std::vector<Piece> owned() const = 0;   // what this rank saves: every byte of the state
                                                  // on exactly one rank
  virtual std::vector<Piece> wanted() const = 0;  // what this rank must load, before spread()
  // Collective: every rank has loaded what it wants, and set updates(). What else it needs comes
  // from the others.
  virtual Status spread(Stream& stream) = 0;
  virtual uint64_t updates() const = 0;  // Adam's own count
  virtual void set_updates(uint64_t n) = 0;
  virtual int64_t bucket_bytes() const = 0;  // of gradients that are reduced together
};

struct BatchShape {
  int64_t sequences = 0, context = 0;
};
// What memory is for. Training needs what the backward pass reads, of every layer; or only where
// each layer begins, and the backward pass computes the rest of a layer again, to the same bits.
// Evaluation needs one layer at a time, generation besides every layer's keys and values.
enum class Use : uint8_t { training, evaluation, generation };
enum class Recompute : uint8_t { none, block };
struct ReserveFor {
  BatchShape shape;
  Use use = Use::training;
  Recompute recompute = Recompute::none;
};
struct Batch {
  View tokens;   // i32 [sequences, context], memory of the device
  View targets;  // the same shape; -1 is ignored
};

struct Ctx {
  Ops& ops;
  Stream& stream;
  View loss, count;        // f64 [1], accumulated: sum of losses, number of unmasked targets
  Trace* trace = nullptr;  // track "compute"
};

class Model {
 public:
  virtual ~Model() = default;
  virtual std::span<const ParamSpec> params() const = 0;
  virtual OpsLimits limits(const BatchShape& shape) const = 0;

  // Takes the memory of activations from the arena; call it with a measuring one first. Later
  // batches may be smaller in both dimensions.
  virtual void reserve(Arena& arena, const Ops& ops, const ReserveFor& what) = 0;

  // Loss and count of a batch; nothing is kept.
  virtual void evaluate(Ctx& ctx, const Batch& batch, Shard& shard) = 0;
  // forward keeps what backward needs; the loss and its gradient are computed at the start of
  // backward, in one pass over the logits.
  virtual void forward(Ctx& ctx, const Batch& batch, Shard& shard) = 0;
  virtual void backward(Ctx& ctx, const Batch& batch, Shard& shard) = 0;
  // Text generation: the tokens [1, count] i32 of one sequence, of which those before `first` have
  // been given already since it began; of each layer, the keys and values of all are kept. Logits
  // after the last token: [vocab], of the ops' type.
  virtual void extend(Ctx& ctx, View tokens, int64_t first, View out, Shard& shard) = 0;

  virtual double flops_per_token() const = 0;  // of a training step: 6 N + 6 L C T, causal counted
};

struct GptConfig {
  int64_t layers = 6, heads = 6, width = 384, context = 256, vocab = 256;
};
// GPT-2: learned positions, pre-norm, GELU, tied embedding (Radford et al. 2019). Refuses shapes
// that do not fit together.
Result<std::unique_ptr<Model>> make_gpt(const GptConfig& config);

}  // namespace trainlaunch
