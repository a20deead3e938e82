#include "slurm.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace harness {

Slurm slurm;

void tell(const Json& event) {
  const std::string line =
      event.dump(-1, ' ', false, nlohmann::detail::error_handler_t::replace) + '\n';
  if (write(slurm.events, line.data(), line.size()) < 0) _exit(99);
}

namespace {

void log(const char* level, const char* format, va_list arguments) {
  char text[8192];
  vsnprintf(text, sizeof text, format, arguments);
  tell({{"log", level}, {"text", text}});
}

bool remote() { return slurm.context == S_CTX_REMOTE; }

// Some releases have numbers for these, some an enumeration.
spank_err_t code(int error) { return static_cast<spank_err_t>(error); }

}  // namespace
}  // namespace harness

using harness::code;
using harness::slurm;

extern "C" {

#define HARNESS_LOG(function, level)        \
  void function(const char* format, ...) {  \
    va_list arguments;                      \
    va_start(arguments, format);            \
    harness::log(level, format, arguments); \
    va_end(arguments);                      \
  }
HARNESS_LOG(slurm_error, "error")
HARNESS_LOG(slurm_info, "info")
HARNESS_LOG(slurm_spank_log, "spank")

spank_context_t spank_context() { return slurm.context; }
int spank_remote(spank_t) { return harness::remote(); }

spank_err_t spank_option_register(spank_t, spank_option* option) {
  slurm.registered.push_back(*option);
  return code(ESPANK_SUCCESS);
}

spank_err_t spank_getenv(spank_t, const char* name, char* value, int size) {
  if (!harness::remote()) return code(ESPANK_NOT_REMOTE);
  if (size < 0) return code(ESPANK_BAD_ARG);
  const auto found = slurm.env.find(std::string_view(name));
  if (found == slurm.env.end()) return code(ESPANK_ENV_NOEXIST);
  // As Slurm does: a value that does not fit is cut, and ended.
  snprintf(value, static_cast<size_t>(size), "%s", found->second.c_str());
  const bool cut = found->second.size() >= static_cast<size_t>(size);
  return code(cut ? ESPANK_NOSPACE : ESPANK_SUCCESS);
}

spank_err_t spank_setenv(spank_t, const char* name, const char* value, int overwrite) {
  if (!harness::remote()) return code(ESPANK_NOT_REMOTE);
  if (!overwrite && slurm.env.contains(name)) return code(ESPANK_ENV_EXISTS);
  slurm.env[name] = value;
  return code(ESPANK_SUCCESS);
}

spank_err_t spank_unsetenv(spank_t, const char* name) {
  if (!harness::remote()) return code(ESPANK_NOT_REMOTE);
  slurm.env.erase(name);
  return code(ESPANK_SUCCESS);
}

spank_err_t spank_get_item(spank_t, spank_item_t item, ...) {
  va_list arguments;
  va_start(arguments, item);
  // What is not in the request, Slurm cannot say.
  const auto number = [&](const char* key) {
    if (!slurm.step.contains(key)) return code(ESPANK_NOT_AVAIL);
    *va_arg(arguments, uint32_t*) = slurm.step.at(key).get<uint32_t>();
    return code(ESPANK_SUCCESS);
  };
  spank_err_t answer = code(ESPANK_BAD_ARG);
  if (item == S_JOB_ARGV) {
    *va_arg(arguments, int*) = static_cast<int>(slurm.argv.size()) - 1;
    *va_arg(arguments, char***) = slurm.argv.data();
    answer = code(ESPANK_SUCCESS);
  } else if (!harness::remote()) {
    answer = code(ESPANK_NOT_REMOTE);
  } else if (item == S_JOB_UID) {
    answer = number("uid");
  } else if (item == S_JOB_GID) {
    answer = number("gid");
  } else if (item == S_JOB_STEPID) {
    answer = number("id");
  } else if (item == S_JOB_NODEID) {
    answer = number("node");
  } else if (item == S_JOB_LOCAL_TASK_COUNT) {
    answer = number("ranks");
  } else if (item == S_STEP_ALLOC_CORES) {
    *va_arg(arguments, char**) = slurm.cores.data();
    answer = code(ESPANK_SUCCESS);
  } else if (item == S_TASK_ID) {
    *va_arg(arguments, int*) = slurm.task;
    answer = code(slurm.task < 0 ? ESPANK_NOT_TASK : ESPANK_SUCCESS);
  }
  va_end(arguments);
  return answer;
}

}  // extern "C"
