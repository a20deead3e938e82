#include "train/describe.h"

#include "train/words.h"

namespace trainlaunch {

namespace {

std::string checkpoint_line(const CheckpointConfig& c, uint64_t copy) {
  std::string line = "checkpoint  ";
  line += c.every > 0 ? "every " + plural(static_cast<uint64_t>(c.every), "step")
                      : std::string("at the end");
  if (!c.local_dir.empty() && c.local_every > 0)
    line += ", every " + std::to_string(c.local_every) + " in " + c.local_dir + " of each node";
  return line + ", written from a copy of " + mebibytes(copy) + " a rank";
}

std::string memory_line(const Engine& e) {
  const MemoryPlan& m = e.shard_memory;
  std::string arena;
  for (const Arena::Item& item : e.arena.items())
    if (item.bytes >= size_t{1} << 16)  // smaller ones would read 0.0 MiB
      arena += (arena.empty() ? "" : ", ") + item.what + " " + mebibytes(item.bytes);
  std::string line = "memory      of a rank: weights " + mebibytes(m.weights + m.masters) +
                     ", gradients " + mebibytes(m.gradients) + ", optimizer " +
                     mebibytes(m.optimizer) + ", buffers " + mebibytes(m.buffers);
  return line + "; " + arena + " (" + e.arena.describe() + ")";
}

}  // namespace

std::string model_line(const ModelConfig& c, const Model& model) {
  uint64_t parameters = 0;
  for (const ParamSpec& p : model.params()) parameters += static_cast<uint64_t>(p.size());
  return "model       " + grouped(parameters) + " parameters: " + std::to_string(c.layers) +
         " layers, " + std::to_string(c.heads) + " heads, width " + std::to_string(c.width) +
         ", context " + std::to_string(c.context);
}

std::vector<std::string> describe(const Start& s) {
  const Engine& e = s.engine;
  const bool canonical = s.config.deterministic == Deterministic::canonical;
  return {"world       " + plural(static_cast<uint64_t>(s.world.size), "rank") + " on " +
              plural(s.world.nodes.size(), "node") + ", " + e.comm->name() + " communication; " +
              e.ops->name() + " operations, " + plural(static_cast<uint64_t>(e.threads), "thread") +
              " a rank",
          model_line(s.config.model, *e.model),
          "data        " + s.config.data.path + ": " + grouped(s.text.bytes()) + " bytes, " +
              grouped(s.text.training_samples()) + " samples to train on, " +
              grouped(s.text.validation_samples()) + " to validate with",
          "batch       " + plural(static_cast<uint64_t>(s.config.train.global_batch), "sequence") +
              " a step, in micro-batches of " + std::to_string(e.tokens.rows()) +
              (canonical ? ", summed as on any number of ranks" : ""),
          std::string("parallel    shard ") + name_of(s.config.parallel.shard) +
              ", reduced in buckets of " +
              mebibytes(static_cast<uint64_t>(e.shard->bucket_bytes())) +
              (s.config.parallel.bucket_mib > 0 || s.world.size == 1 ? "" : ", as measured"),
          memory_line(e),
          "peak        " + e.peak.name,
          checkpoint_line(s.config.checkpoint, s.copy),
          "run         " + s.config.run_dir + ", " +
              (s.from.empty() ? std::string("from the beginning") : "continued from " + s.from) +
              ", to step " + std::to_string(s.config.train.steps)};
}

}  // namespace trainlaunch
