// gpu_bind.so: the hooks that Slurm calls. Thin on purpose: slurmstepd runs as root and must not
// die. It offers the options, asks the planner once for each node and job step (drop.h), and
// applies one part of the checked answer (answer.h) in each rank. Errors never leave a hook: the
// first one is kept, told once, and stops the job step only under --gpu-bind-strict=yes.

#include <fcntl.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <climits>
#include <cstdlib>

#include "answer.h"
#include "apply.h"
#include "asked.h"
#include "drop.h"
#include "files.h"
#include "options.h"
#include "text.h"
#include "wire.h"

// The header declares the hooks outside of its extern "C".
#pragma GCC visibility push(default)
extern "C" {
#include <slurm/slurm.h>
#include <slurm/spank.h>

extern const char plugin_name[];
extern const char plugin_type[];
extern const unsigned int plugin_version;
extern const unsigned int spank_plugin_version;
}
#pragma GCC visibility pop

SPANK_PLUGIN(gpu_bind, 1)

namespace trainlaunch::plugin {
namespace {

// What one process of Slurm remembers from one hook to the next.
struct State {
  const char* planner = TL_LIBEXECDIR "/gpu-bind";
  const char* config = TL_SYSCONFDIR "/slurm/gpu-bind.conf";
  bool config_named = false;    // in plugstack.conf: then it must be there
  const char* cache = nullptr;  // a directory; null: none
  Options options;
  bool strict = false;
  Asked asked;
  Within within = Within::mask;
  Reason error;          // the first; empty: none
  bool planned = false;  // `answer` holds a plan
  Answer answer;         // looks into `answer_text`
  Fixed<8192> words;     // what the planner was told of this node's part of the job step
};
constinit State state;
char answer_text[gpu_bind_wire::max_bytes];

void keep_error(const Reason& why) {
  if (state.error.empty()) state.error = why;
}

// --- The environment of the job. ---

enum class Found { no, yes, cut };

template <size_t N>
Found get_env(spank_t sp, const char* name, char (&value)[N]) {
  const int rc = spank_getenv(sp, name, value, N);
  return rc == ESPANK_SUCCESS ? Found::yes : rc == ESPANK_NOSPACE ? Found::cut : Found::no;
}

bool has_env(spank_t sp, const char* name) {
  char value[8];
  return get_env(sp, name, value) != Found::no;
}

// --- Options. ---

void read_arguments(int argc, char** argv) {
  for (int i = 0; i < argc; ++i) {
    std::string_view arg = argv[i];
    if (take(arg, "planner=")) {
      state.planner = arg.data();
    } else if (take(arg, "config=")) {
      state.config = arg.data();
      state.config_named = true;
    } else if (take(arg, "cache=")) {
      state.cache = arg.data();
    } else {
      keep_error(Reason().set("plugstack.conf: ", arg,
                              ": use planner=PATH, config=PATH or cache=DIRECTORY"));
    }
  }
}

// In srun, sbatch and salloc a wrong value ends the command with one line, as Slurm's own options
// do.
[[noreturn]] void refuse(int id, bool from_variable, const char* value) {
  slurm_error("gpu-bind: %s", refusal(id, from_variable, value).c_str());
  exit(1);
}

int take_option(int id, const char* value, int remote) noexcept {
  if (!value) value = "";
  if (!remote && strcmp(value, "help") == 0) {
    fputs(option_info(id).help, stdout);
    exit(0);
  }
  if (state.options.set(id, value)) return 0;
  if (!remote) refuse(id, false, value);
  keep_error(refusal(id, false, value));
  return 0;
}

void register_options(spank_t sp) {
  for (int id = 0; id < option_count; ++id) {
    const OptionInfo& info = option_info(id);
    spank_option option = {const_cast<char*>(info.name),
                           const_cast<char*>(info.arg),
                           const_cast<char*>(info.usage),
                           1,
                           id,
                           take_option};
    spank_option_register(sp, &option);  // a failure is reported by Slurm itself
  }
}

void check_variables() {
  for (int id = 0; id < option_count; ++id) {
    const char* value = getenv(option_info(id).variable);
    if (value && *value && !state.options.has(id) && !valid_option(id, value))
      refuse(id, true, value);
  }
}

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

// --- What the user asked of Slurm, as srun sees it. ---

bool is_set(const char* name) {
  const char* value = getenv(name);
  return value && *value;
}

// srun's own options stand before the command that it runs.
void read_command_line(spank_t sp, GpuRequest& request) {
  int argc = 0;
  char** argv = nullptr;
  if (spank_get_item(sp, S_JOB_ARGV, &argc, &argv) != ESPANK_SUCCESS) return;
  static char words[64 * 1024];
  const int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  size_t size = 0;
  ssize_t n;
  while ((n = read(fd, words + size, sizeof words - 1 - size)) > 0) size += static_cast<size_t>(n);
  close(fd);
  static const char* word[4096];
  int count = 0;
  for (size_t at = 0; at < size && count < 4096; at += strlen(words + at) + 1)
    word[count++] = words + at;
  const WordRange own = options_for(word, count, argv, argc);
  for (int i = own.begin; i < own.end; ++i) request.argument(word[i]);
}

Asked asked_in_srun(spank_t sp) {
  GpuRequest gpu;
  gpu.option("--gpus-per-task", getenv("SLURM_GPUS_PER_TASK"));
  gpu.option("--ntasks-per-gpu", getenv("SLURM_NTASKS_PER_GPU"));
  gpu.option("--tres-per-task", getenv("SLURM_TRES_PER_TASK"));
  gpu.option("--gpu-bind", getenv("SLURM_GPU_BIND"));
  read_command_line(sp, gpu);
  Asked asked;
  asked.cpu = is_set("SLURM_CPU_BIND_TYPE");  // srun sets these from its options
  asked.mem = is_set("SLURM_MEM_BIND_TYPE");
  asked.gpu = gpu.binds();
  return asked;
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

// --- Asking the planner. ---

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

// The last part of SLURM_TOPOLOGY_ADDR ("switch.switch.node") is Slurm's name of this node, which
// need not be the host's.
Fixed<256> node_name(spank_t sp) {
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

void plan_step(spank_t sp) {
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

// In slurmd, which is root: the planner looks at the machine once, for all job steps to come. It
// looks as nobody, and while slurmd goes on; if it fails, job steps look for themselves.
void fill_cache() {
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

// --- One rank. ---

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

void bind_rank(spank_t sp) {
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

}  // namespace
}  // namespace trainlaunch::plugin

namespace impl = trainlaunch::plugin;

// --- What Slurm calls. None of these fails: a failing init or user_init can drain the node. ---

extern "C" {

__attribute__((visibility("default"))) int slurm_spank_init(spank_t sp, int argc,
                                                            char* argv[]) noexcept {
  const spank_context_t context = spank_context();
  const bool daemon = context == S_CTX_SLURMD;
  if (!daemon && context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE)
    return 0;
  impl::read_arguments(argc, argv);
  if (daemon) {
    impl::fill_cache();
    return 0;
  }
  impl::register_options(sp);
  return 0;
}

__attribute__((visibility("default"))) int slurm_spank_init_post_opt(spank_t, int,
                                                                     char**) noexcept {
  const spank_context_t context = spank_context();
  if (context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR) impl::check_variables();
  return 0;
}

__attribute__((visibility("default"))) int slurm_spank_local_user_init(spank_t sp, int,
                                                                       char**) noexcept {
  setenv("GPU_BIND_ASKED", impl::asked_in_srun(sp).text().c_str(), 1);
  return 0;
}

__attribute__((visibility("default"))) int slurm_spank_user_init(spank_t sp, int, char**) noexcept {
  if (spank_remote(sp) == 1) impl::plan_step(sp);
  return 0;
}

__attribute__((visibility("default"))) int slurm_spank_task_init(spank_t sp, int, char**) noexcept {
  if (spank_remote(sp) == 1) impl::bind_rank(sp);
  return 0;
}

}  // extern "C"
