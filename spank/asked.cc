#include "asked.h"

namespace trainlaunch::plugin {
namespace {

constexpr const char* with_value[] = {"--gpu-bind", "--gpus-per-task", "--ntasks-per-gpu",
                                      "--tres-per-task", "--tres-bind"};

// srun may have written the program's path in full.
bool is_program(const char* word, std::string_view path) {
  const std::string_view name = word;
  return path.size() >= name.size() && path.substr(path.size() - name.size()) == name;
}

bool is_command(const char* const* words, char* const* argv, int argc) {
  if (argc == 0) return true;
  if (!is_program(words[0], argv[0])) return false;
  for (int i = 1; i < argc; ++i)
    if (strcmp(words[i], argv[i]) != 0) return false;
  return true;
}

}  // namespace

WordRange options_for(const char* const* words, int count, char* const* argv, int argc) {
  for (int begin = 0, end; begin < count; begin = end + 1) {
    for (end = begin; end < count && strcmp(words[end], ":") != 0;) ++end;
    const int command = end - argc;
    if (command >= begin && is_command(words + command, argv, argc)) return {begin, command};
  }
  return {0, count > argc ? count - argc : 0};
}

Fixed<16> Asked::text() const {
  Fixed<16> s;
  const auto add = [&](bool yes, const char* word) {
    if (!yes) return;
    if (!s.empty()) s += ",";
    s += word;
  };
  add(cpu, "cpu");
  add(mem, "mem");
  add(gpu, "gpu");
  if (s.empty()) s += "none";
  return s;
}

Asked parse_asked(std::string_view text) {
  Asked asked;
  std::string_view word;
  while (next_part(text, ',', word)) {
    if (word == "cpu") asked.cpu = true;
    if (word == "mem") asked.mem = true;
    if (word == "gpu") asked.gpu = true;
  }
  return asked;
}

bool binds_gpus(std::string_view gpu_bind) {
  if (!take(gpu_bind, "verbose") && !take(gpu_bind, "v,")) take(gpu_bind, "quiet");
  take(gpu_bind, ",");
  return !gpu_bind.empty() && gpu_bind != "v" && gpu_bind != "none";
}

void GpuRequest::option(std::string_view name, const char* value) {
  if (!value) return;
  if (name == "--gpu-bind") {
    explicit_ = true;
    binds_ = binds_gpus(value);
  } else if (name == "--tres-bind") {
    const char* gpu = strstr(value, "gpu:");
    if (gpu) option("--gpu-bind", gpu + strlen("gpu:"));
  } else if (name == "--tres-per-task") {
    if (strstr(value, "gpu")) implied_ = true;
  } else if (name == "--gpus-per-task" || name == "--ntasks-per-gpu") {
    implied_ = true;
  }
}

void GpuRequest::argument(const char* word) {
  if (!pending_.empty()) {
    const std::string_view name = pending_;
    pending_ = {};
    option(name, word);
  } else if (const char* equals = strchr(word, '=')) {
    option({word, static_cast<size_t>(equals - word)}, equals + 1);
  } else {
    for (const char* name : with_value)
      if (strcmp(word, name) == 0) pending_ = name;
  }
}

}  // namespace trainlaunch::plugin
