// One node's part of a job step: what the planner is told, and that it is asked.
#include <sys/utsname.h>

#include <cstring>

#include "drop.h"
#include "files.h"
#include "hooks.h"

namespace trainlaunch::plugin {
namespace {

char answer_text[gpu_bind_wire::max_bytes];

void take_variables(spank_t sp) {
  for (int id = 0; id < option_count; ++id) {
    char value[Options::max_value];
    if (state.options.has(id)) continue;
    const Found found = get_env(sp, option_info(id).variable, value);
    if (found == Found::no || !*value) continue;
    // One that is too long asks for binding too, and is refused.
    if (!state.options.set(id, found == Found::cut ? "" : value))
      keep_error(refusal(id, true, value));
  }
}

// In slurmstepd. Without srun's word (--export=NONE) what it set in the environment must do.
Asked asked_of_step(spank_t sp) {
  char value[64];
  if (get_env(sp, "GPU_BIND_ASKED", value) == Found::yes) return parse_asked(value);
  Asked asked;
  asked.cpu = get_env(sp, "SLURM_CPU_BIND_TYPE", value) != Found::no && *value;
  asked.mem = get_env(sp, "SLURM_MEM_BIND_TYPE", value) != Found::no && *value;
  return asked;
}

// Words of a command line, one after another in one buffer.
class Words {
 public:
  template <class... Part>
  void add(const Part&... parts) {
    if (count_ == max_words) return;
    words_[count_++] = text_ + used_;
    (append(parts), ...);
    append(std::string_view("\0", 1));
  }
  bool cut() const { return cut_; }
  size_t count() const { return count_; }
  // The words from `first` on, between blanks.
  template <size_t N>
  void join(size_t first, Fixed<N>& line) const {
    for (size_t i = first; i < count_; ++i) {
      if (i > first) line += " ";
      line += words_[i];
    }
  }
  char* const* argv() {
    words_[count_] = nullptr;
    return words_;
  }

 private:
  static constexpr size_t max_words = 31;
  void append(std::string_view s) {
    if (s.size() > sizeof text_ - used_) cut_ = true;
    if (cut_) return;
    memcpy(text_ + used_, s.data(), s.size());
    used_ += s.size();
  }
  char text_[64 * 1024] = {};
  size_t used_ = 0;
  char* words_[max_words + 1] = {};
  size_t count_ = 0;
  bool cut_ = false;
};

// A job's step and no other: neither the batch script, nor an interactive or external step.
bool ordinary_step(spank_t sp) {
  uint32_t id = 0;
  return spank_get_item(sp, S_JOB_STEPID, &id) == ESPANK_SUCCESS && id <= SLURM_MAX_NORMAL_STEP_ID;
}

// A list from the environment as one argument; one that is cut would be another list.
bool add_list(spank_t sp, Words& words, std::string_view option, const char* variable) {
  static char value[32 * 1024];
  switch (get_env(sp, variable, value)) {
    case Found::no:
      return false;
    case Found::yes:
      words.add(option, value);
      return true;
    case Found::cut:
      keep_error(Reason().set(variable, ": too long a list"));
      return true;
  }
  return false;
}

// Slurm keeps this list in 1,024 characters and cuts it without a word.
void add_cores(spank_t sp, Words& words) {
  constexpr size_t slurm_limit = 1023;
  char* cores = nullptr;
  if (spank_get_item(sp, S_STEP_ALLOC_CORES, &cores) != ESPANK_SUCCESS || !cores || !*cores) return;
  if (strnlen(cores, slurm_limit) == slurm_limit)
    keep_error(Reason().set("the job step's list of cores is too long for Slurm to tell"));
  else
    words.add("--cores=", cores);
  // The plan keeps to these cores, so Slurm's own choice among them can be replaced.
  state.within = Within::cpuset;
}

void add_options(Words& words, bool requested) {
  if (!requested) words.add("--requested=no");
  for (int id = 0; id < option_count; ++id)
    if (state.options.has(id)) words.add("--", planner_name(id), "=", state.options.get(id));
}

// What the doctor looks at of the ranks' environment, a line each; what is too long is left out.
void add_environment(spank_t sp, Words& words) {
  constexpr const char* names[] = {
      "NCCL_IB_HCA",         "NCCL_SOCKET_IFNAME",      "GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES",
      "NCCL_IB_DISABLE",     "NCCL_P2P_DISABLE",        "NCCL_SHM_DISABLE",   "CUDA_DEVICE_ORDER",
      "HIP_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "OMP_PROC_BIND",      "OMP_PLACES",
      "SLURM_RLIMIT_MEMLOCK"};
  static constinit Fixed<16 * 1024> lines;
  for (const char* name : names) {
    char value[1024];
    if (get_env(sp, name, value) != Found::yes || strchr(value, '\n')) continue;
    lines += name;
    lines += "=";
    lines += value;
    lines += "\n";
  }
  if (!lines.empty()) words.add("--environment=", lines.view());
}

void ask_planner(spank_t sp, const Site& site, bool requested) {
  uint32_t ranks = 0;
  User user;
  Reason why;
  if (spank_get_item(sp, S_JOB_LOCAL_TASK_COUNT, &ranks) != ESPANK_SUCCESS ||
      spank_get_item(sp, S_JOB_UID, &user.uid) != ESPANK_SUCCESS ||
      spank_get_item(sp, S_JOB_GID, &user.gid) != ESPANK_SUCCESS)
    return keep_error(Reason().set("Slurm does not say whose job step this is"));
  if (ranks > gpu_bind_wire::max_ranks)
    return keep_error(Reason().set(static_cast<long>(ranks), " ranks on one node are too many"));

  static constinit Words words;
  words.add(state.planner);
  words.add("plan");
  words.add("--format=wire");
  const size_t first = words.count();
  if (site.there) words.add("--config=", state.config);
  Fixed<16> count;
  count += static_cast<long>(ranks);
  words.add("--ranks=", count.view());
  words.add("--node=", node_name(sp).view());
  add_cores(sp, words);
  add_list(sp, words, "--gpus=", "SLURM_STEP_GPUS");
  for (const char* mask : {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"})
    if (add_list(sp, words, "--devices=", mask)) break;
  if (state.asked.any()) words.add("--asked=", state.asked.text().view());
  add_options(words, requested);
  words.join(first, state.words);
  if (state.options.get(report) == "doctor") add_environment(sp, words);
  // Ranks have this list from Slurm.
  if (!add_list(sp, words, "--nodelist=", "SLURM_STEP_NODELIST"))
    add_list(sp, words, "--nodelist=", "SLURM_JOB_NODELIST");
  if (state.cache) words.add("--cache=", state.cache);
  if (words.cut()) keep_error(Reason().set("the planner's arguments are too long"));
  if (!state.error.empty() || !trusted_program(state.planner, why)) return keep_error(why);

  size_t size = 0;
  const Planner planner{state.planner, words.argv(), user, site.timeout_ms};
  if (!run_planner(planner, answer_text, sizeof answer_text, size, why)) return keep_error(why);
  if (!state.answer.read(answer_text, size, ranks, why)) return keep_error(why);
  state.planned = true;
}

void tell_node() {
  std::string_view rest = state.answer.node(), text;
  while (Answer::next_text(rest, text))
    slurm_spank_log("%.*s", static_cast<int>(text.size()), text.data());
}

// Once for each job step, not once for each of its nodes.
void tell_switched_off(spank_t sp) {
  uint32_t node = 0;
  if (spank_get_item(sp, S_JOB_NODEID, &node) == ESPANK_SUCCESS && node == 0)
    slurm_spank_log("gpu-bind: switched off on this cluster (bind=off in %s)", state.config);
}

}  // namespace

// The last part of SLURM_TOPOLOGY_ADDR ("switch.switch.node") is Slurm's name of this node, which
// need not be the host's.
Fixed<256> node_name(spank_t sp) noexcept {
  char address[1024], pattern[1024];
  Fixed<256> name;
  if (get_env(sp, "SLURM_TOPOLOGY_ADDR", address) == Found::yes &&
      get_env(sp, "SLURM_TOPOLOGY_ADDR_PATTERN", pattern) == Found::yes) {
    const char* last = strchr(pattern, '.') ? strrchr(address, '.') : nullptr;
    name.set(last ? last + 1 : address);
  }
  utsname host;
  if ((name.empty() || !all_printable(name.view())) && uname(&host) == 0) {
    if (char* dot = strchr(host.nodename, '.')) *dot = '\0';
    name.set(host.nodename);
  }
  return name;
}

void plan_step(spank_t sp) noexcept {
  if (!ordinary_step(sp)) return;
  // Those of the job step around this one.
  spank_unsetenv(sp, "GPU_BIND_PLAN");
  spank_unsetenv(sp, "GPU_BIND_STEP");
  if (!has_env(sp, "SLURM_STEP_GPUS")) return;
  take_variables(sp);
  if (state.options.get(policy) == "off") {
    state.error.clear();
    return;
  }
  const bool requested = state.options.any();
  Site site;
  Reason why;
  if (!read_site(state.config, state.config_named, site, why)) {
    if (!requested) {
      slurm_info("gpu-bind: %s", why.c_str());  // the node's log; nobody asked
      return;
    }
    keep_error(why);
  }
  if (site.bind == Site::off) {
    state.error.clear();
    if (requested) tell_switched_off(sp);
    return;
  }
  if (!requested && site.bind != Site::always) return;

  state.strict = state.options.has(strict) ? state.options.get(strict) == "yes" : site.strict;
  state.asked = asked_of_step(sp);
  // Slurm sets it anew in each task for which it chooses GPUs; what an outer step left is stale.
  spank_unsetenv(sp, "SLURMD_TRES_BIND");
  if (state.error.empty()) ask_planner(sp, site, requested);
  if (state.planned)
    tell_node();
  else if (!state.strict)
    slurm_spank_log("gpu-bind: %s: ranks stay as Slurm started them: %s", node_name(sp).c_str(),
                    state.error.c_str());
}

void fill_cache() noexcept {
  if (!state.cache) return;
  Reason why;
  static constinit Words words;
  words.add(state.planner);
  words.add("cache");
  words.add("--cache=", state.cache);
  if (!state.error.empty()) why = state.error;
  if (!why.empty() || !trusted_program(state.planner, why) ||
      !start_apart(state.planner, words.argv(), why))
    slurm_info("gpu-bind: the topology cache is not filled: %s", why.c_str());
}

}  // namespace trainlaunch::plugin
