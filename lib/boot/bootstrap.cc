#include "boot/bootstrap.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>

#include "boot/pmix.h"

namespace trainlaunch {
namespace {

long number(const Environment& env, const char* name) {
  const char* text = env(name);
  if (!text) return 0;
  long x = 0;
  std::from_chars(text, text + std::string_view(text).size(), x);
  return x;
}

// Slurm numbers its own steps (the batch script, a salloc shell, the external step) from the top.
constexpr long first_special_step = 0xfffffff0;

bool in_task_step(const Environment& env) {
  return env("SLURM_STEP_ID") && number(env, "SLURM_STEP_ID") < first_special_step;
}

long allocated_tasks(const Environment& env) {
  const long nodes = std::max(number(env, "SLURM_JOB_NUM_NODES"), 1l);
  return std::max(
      {number(env, "SLURM_NTASKS"), nodes, nodes * number(env, "SLURM_NTASKS_PER_NODE")});
}

class Alone final : public Bootstrap {
 public:
  Alone() {
    char name[256] = "";
    if (gethostname(name, sizeof name - 1) == 0 && *name) world_.nodes = {name};
  }
  const World& world() const override { return world_; }
  Result<std::string> share(std::string_view from_rank0, Deadline) override {
    return std::string(from_rank0);
  }
  void abort(int) override {}
  Status finalize(Deadline) override { return {}; }

 private:
  World world_;
};

}  // namespace

const char* system_environment(const char* name) { return std::getenv(name); }

Result<Launcher> find_launcher(const Environment& env) {
  if (env("PMIX_NAMESPACE") && env("PMIX_RANK")) return Launcher::pmix;
  if (in_task_step(env)) {
    const long tasks = number(env, "SLURM_STEP_NUM_TASKS");
    if (tasks <= 1) return Launcher::alone;
    return fail(
        "each of the " + std::to_string(tasks) +
            " tasks of this job step would be a world of its own, because srun was told not "
            "to use PMIx; use: srun --mpi=pmix -n" +
            std::to_string(tasks) + " train-launch ...",
        exit_code::usage);
  }
  if (env("SLURM_JOB_ID")) {
    const long tasks = allocated_tasks(env);
    if (tasks > 1)
      return fail("this job has " + std::to_string(tasks) +
                      " tasks, but train-launch was started beside them, without srun; use: srun "
                      "--mpi=pmix -n" +
                      std::to_string(tasks) + " train-launch ...",
                  exit_code::usage);
  }
  return Launcher::alone;
}

Status check_world(const Environment& env, std::string_view pmix_namespace, uint32_t pmix_size) {
  // mpirun inside a job step has a world of its own size, and a namespace of its own kind.
  const bool of_slurm =
      pmix_namespace.starts_with("slurm.") || pmix_namespace.starts_with("singleton");
  const long tasks = number(env, "SLURM_STEP_NUM_TASKS");
  if (!of_slurm || !in_task_step(env) || static_cast<long>(pmix_size) >= tasks) return {};
  return fail("PMIx knows " + std::to_string(pmix_size) + " of the " + std::to_string(tasks) +
                  " tasks of this job step; use: srun --mpi=pmix -n" + std::to_string(tasks) +
                  " train-launch ...",
              exit_code::usage);
}

int presumed_rank(const Environment& env) {
  const char* name = env("PMIX_RANK") ? "PMIX_RANK" : "SLURM_PROCID";
  return static_cast<int>(number(env, name));
}

Result<World> arrange(uint32_t pmix_rank, const std::vector<std::string>& host_of_pmix_rank) {
  if (pmix_rank >= host_of_pmix_rank.size())
    return fail("PMIx: rank " + std::to_string(pmix_rank) + " of " +
                std::to_string(host_of_pmix_rank.size()));
  World w;
  w.size = static_cast<int>(host_of_pmix_rank.size());
  w.nodes.clear();
  std::map<std::string, int> node_of_host;
  std::vector<std::vector<uint32_t>> members;
  for (uint32_t r = 0; r < host_of_pmix_rank.size(); ++r) {
    const std::string& host = host_of_pmix_rank[r];
    if (host.empty()) return fail("PMIx: rank " + std::to_string(r) + " is on no node");
    const auto [it, fresh] = node_of_host.emplace(host, static_cast<int>(members.size()));
    if (fresh) {
      w.nodes.push_back(host);
      members.emplace_back();
    }
    members[it->second].push_back(r);
  }
  w.node_of.clear();
  for (int node = 0; node < static_cast<int>(members.size()); ++node) {
    const auto& m = members[node];
    const auto me = std::find(m.begin(), m.end(), pmix_rank);
    if (me != m.end()) {
      w.node = node;
      w.local_rank = static_cast<int>(me - m.begin());
      w.local_size = static_cast<int>(m.size());
      w.rank = static_cast<int>(w.node_of.size()) + w.local_rank;
    }
    w.node_of.insert(w.node_of.end(), m.size(), node);
  }
  return w;
}

Result<std::unique_ptr<Bootstrap>> make_bootstrap(const Environment& env, Deadline deadline) {
  auto launcher = find_launcher(env);
  if (!launcher) return forward(launcher);
  if (*launcher == Launcher::pmix) return make_pmix_bootstrap(env, deadline);
  return std::make_unique<Alone>();
}

}  // namespace trainlaunch
