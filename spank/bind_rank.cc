// One rank, in its own process before its program starts.
#include <unistd.h>

#include <climits>
#include <cstring>

#include "files.h"
#include "hooks.h"

namespace trainlaunch::plugin {
namespace {

// In the task itself: standard error is the rank's own, and Slurm's log is spared.
void tell_rank(std::string_view text) {
  Fixed<gpu_bind_wire::max_line + 2> line;
  line.set(text, "\n");
  if (write(STDERR_FILENO, line.c_str(), line.view().size()) < 0) return;
}

constexpr int whole_node = -1;

// With the name of the node, and of the rank if it is one rank's own affair.
void tell_reason(spank_t sp, int rank, std::string_view what, const Reason& why) {
  Fixed<1024> line;
  line.set("gpu-bind: ", node_name(sp).view());
  if (rank >= 0) {
    line += " rank ";
    line += static_cast<long>(rank);
    line += " (local)";
  }
  line += ": ";
  line += what;
  line += why.view();
  tell_rank(line.view());
}

[[noreturn]] void stop(spank_t sp, int rank, const Reason& why) {
  tell_reason(sp, rank, "job step stopped: ", why);
  _exit(1);  // a forked child of slurmstepd; what a hook returns would be swallowed
}

// Names of all variables of a rank, with commas.
using Names = Fixed<gpu_bind_wire::max_env*(gpu_bind_wire::max_name + 1) + 1>;

// What the job step around this one got from us is no choice of the user's. Device masks stay:
// Slurm sets those anew for each job step.
void forget_inherited(spank_t sp) {
  char names[sizeof(Names)];
  if (get_env(sp, "GPU_BIND_SET", names) != Found::yes) return;
  std::string_view rest = names, name;
  while (next_part(rest, ',', name)) {
    if (!gpu_bind_wire::is_network_variable(name)) continue;
    Fixed<gpu_bind_wire::max_name + 1> known;
    known.set(name);
    spank_unsetenv(sp, known.c_str());
  }
}

// NCCL's configuration files give way to the environment, so what they set must not be set there.
void read_nccl_conf(spank_t sp, NcclConf& conf) {
  char file[PATH_MAX], home[PATH_MAX];
  const bool has_file = get_env(sp, "NCCL_CONF_FILE", file) == Found::yes;
  const bool has_home = get_env(sp, "HOME", home) == Found::yes;
  conf.read(has_file ? file : nullptr, has_home ? home : nullptr);
}

// What the environment has wins, and so does what NCCL will read from its configuration files.
class Kept {
 public:
  explicit Kept(spank_t sp) : sp_(sp) {}
  bool has(const char* name) {
    if (has_env(sp_, name)) return true;
    if (!read_) read_nccl_conf(sp_, conf_);
    read_ = true;
    return conf_.sets(name);
  }

 private:
  spank_t sp_;
  NcclConf conf_;
  bool read_ = false;
};

// NCCL says nothing about a topology file that it cannot read, such as one that the rank's
// container does not have.
bool there(std::string_view name, const char* value) {
  return name != "NCCL_TOPO_FILE" || readable_file(value);
}

void set_variables(spank_t sp, int rank, const RankPlan& plan) {
  forget_inherited(sp);
  Kept kept(sp);
  Names names;
  for (size_t i = 0; i < plan.variable_count; ++i) {
    const Variable& v = plan.variables[i];
    Fixed<gpu_bind_wire::max_name + 1> name;
    name.set(v.name);
    if (v.give == Give::unset) spank_unsetenv(sp, name.c_str());
    if (v.give == Give::unset || (v.give == Give::keep && kept.has(name.c_str()))) continue;
    Fixed<gpu_bind_wire::max_line> value;
    value.set(v.value);
    if (!there(v.name, value.c_str())) {
      Reason why;
      why.set(v.name, " ", v.value, " cannot be read where the ranks run: not set");
      if (rank == 0) tell_reason(sp, whole_node, "", why);
      continue;
    }
    if (spank_setenv(sp, name.c_str(), value.c_str(), 1) != ESPANK_SUCCESS) continue;
    if (!names.empty()) names += ",";
    names += v.name;
  }
  Fixed<72> digest;
  digest.set(state.answer.digest());
  spank_setenv(sp, "GPU_BIND_SET", names.c_str(), 1);
  spank_setenv(sp, "GPU_BIND_PLAN", digest.c_str(), 1);
  if (!state.words.cut()) spank_setenv(sp, "GPU_BIND_STEP", state.words.c_str(), 1);
}

// Slurm chose this rank's GPUs, and srun did not say so when the plan was made.
bool slurm_chose_gpus(spank_t sp) {
  char value[1024];
  if (state.asked.gpu || get_env(sp, "SLURMD_TRES_BIND", value) == Found::no) return false;
  const char* gpu = strstr(value, "gpu:");
  return gpu && binds_gpus(gpu + strlen("gpu:"));
}

}  // namespace

void bind_rank(spank_t sp) noexcept {
  int id = 0;
  if (spank_get_item(sp, S_TASK_ID, &id) != ESPANK_SUCCESS || id < 0) return;
  if (!state.planned) {
    if (!state.strict || state.error.empty()) return;
    if (id == 0) stop(sp, whole_node, state.error);
    _exit(1);  // rank 0 says why
  }
  if (state.answer.empty()) return;
  if (slurm_chose_gpus(sp)) {
    Reason why;
    why.set(
        "Slurm chose GPUs for each task (--gpus-per-task or --gpu-bind), which the plan does not "
        "know; use --gpus-per-node");
    if (state.strict) stop(sp, id, why);
    if (id == 0) tell_reason(sp, whole_node, "ranks stay as Slurm started them: ", why);
    return;
  }

  const RankPlan plan = state.answer.plan(static_cast<unsigned>(id));
  Reason cpus, mems;
  const bool bound_cpus =
      !plan.has_cpus || state.asked.cpu || apply_cpus(plan.cpus, state.within, cpus);
  const bool bound_mems = state.asked.mem || apply_mems(plan.mem_policy, plan.mems, mems);
  if (state.strict && !bound_cpus) stop(sp, id, cpus);
  if (state.strict && !bound_mems) stop(sp, id, mems);
  set_variables(sp, id, plan);

  std::string_view rest = state.answer.rank(static_cast<unsigned>(id)), text;
  while (Answer::next_text(rest, text)) tell_rank(text);
  if (!bound_cpus) tell_reason(sp, id, "", cpus);
  if (!bound_mems) tell_reason(sp, id, "", mems);
}

}  // namespace trainlaunch::plugin
