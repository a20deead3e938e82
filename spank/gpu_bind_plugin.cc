// gpu_bind.so: the hooks that Slurm calls. Thin on purpose: slurmstepd runs as root and must not
// die. It offers the options, asks the planner once for each node and job step (plan_step.cc), and
// applies one part of the checked answer in each rank (bind_rank.cc). Errors never leave a hook:
// the first one is kept, told once, and stops the job step only under --gpu-bind-strict=yes.

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "hooks.h"

#pragma GCC visibility push(default)
extern "C" {
extern const char plugin_name[];
extern const char plugin_type[];
extern const unsigned int plugin_version;
extern const unsigned int spank_plugin_version;
}
#pragma GCC visibility pop

SPANK_PLUGIN(gpu_bind, 1)

namespace trainlaunch::plugin {

constinit State state;

namespace {

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
