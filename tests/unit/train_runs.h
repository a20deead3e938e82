// Small training runs in processes of their own, for the tests of lib/train.
#pragma once

#include <doctest/doctest.h>

#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "ranks.h"
#include "temporary.h"
#include "train/train.h"

namespace trainlaunch {

// A text that nothing can learn completely: words in an order that a generator chose.
inline std::string words(size_t bytes) {
  static const char* const list[] = {"alpha ", "beta ", "gamma ", "delta\n", "of ", "and "};
  std::string text;
  for (uint64_t i = 0; text.size() < bytes; ++i)
    text += list[philox(99, RandomStream::order, i, 0)[0] % 6];
  return text.substr(0, bytes);
}

class Worker : public testing::PassedOn<WorkerControl> {
 public:
  Worker(Control& control, const std::vector<int>& sockets)
      : PassedOn(control), sockets_(sockets) {}
  const std::vector<int>& local_sockets() const override { return sockets_; }
  void progress(uint64_t, std::string_view) noexcept override {}
  bool failed(std::string_view) noexcept override { return false; }

 private:
  std::vector<int> sockets_;
};

using Act = std::function<Status(WorkerControl&)>;

// What each rank came to: "" or "<exit code> <error>". Processes, so that each has its own threads.
inline std::vector<std::string> as_ranks(const std::vector<int>& per_node, const Act& act,
                                         const std::string& output = "/dev/null") {
  std::fflush(stdout);
  return trainlaunch::testing::run_ranks(
      {per_node}, [&](Control& control, const std::vector<int>& sockets) -> std::string {
        (void)!freopen(output.c_str(), control.world().rank == 0 ? "w" : "a", stdout);
        Worker worker(control, sockets);
        auto s = act(worker);
        std::fflush(stdout);
        return s ? "" : std::to_string(s.error().exit) + " " + s.error().what;
      });
}

inline std::string train_as(const std::vector<int>& per_node, const RunConfig& config,
                            const std::string& output = "/dev/null") {
  const auto all = as_ranks(
      per_node, [&](WorkerControl& c) { return train(config, c); }, output);
  for (const std::string& s : all)
    if (s != all[0]) return "ranks differ: " + all[0] + " | " + s;
  return all[0];
}

inline RunConfig small(const Temporary& dir, const std::string& name = "run") {
  if (!std::filesystem::exists(dir / "text")) write_file(dir / "text", words(20000));
  RunConfig c;
  c.run_dir = dir / name;
  c.data.path = dir / "text";
  c.model = {1, 2, 16, 16};
  c.train.steps = 12;
  c.train.global_batch = 8;
  c.train.log_every = 1;
  c.train.eval_every = 0;
  c.train.threads = 1;
  c.train.peak_tflops = 1;  // need not be found out
  c.train.deadline = 20;
  c.optim.warmup = 4;
  c.optim.lr = 1e-2;
  c.checkpoint.every = 0;
  c.parallel.bucket_mib = 0.01;
  return c;
}

inline std::vector<nlohmann::json> records(const RunConfig& c) {
  std::vector<nlohmann::json> all;
  std::istringstream in(read_file(c.run_dir + "/metrics.jsonl"));
  for (std::string line; std::getline(in, line);) all.push_back(nlohmann::json::parse(line));
  return all;
}
inline std::vector<double> losses(const RunConfig& c) {
  std::vector<double> all;
  for (const nlohmann::json& j : records(c))
    if (j.contains("loss")) all.push_back(j["loss"]);
  return all;
}

}  // namespace trainlaunch
