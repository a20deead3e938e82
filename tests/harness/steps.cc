#include "steps.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <sstream>

namespace harness {

namespace fs = std::filesystem;
using trainlaunch::read_file;
using trainlaunch::write_file;

std::vector<Build> builds() {
  const std::string top = TL_BUILDDIR;
  const std::string harness = top + "/tests/harness";
  std::vector<Build> all = {
      {"as installed", harness + "/slurmstepd", top + "/spank/.libs/gpu_bind.so"},
      {"sanitized", harness + "/slurmstepd_asan", harness + "/.libs/gpu_bind_asan.so"}};
  std::erase_if(all,
                [](const Build& b) { return !fs::exists(b.program) || !fs::exists(b.plugin); });
  return all;
}

uid_t user() { return getuid() == 0 ? 65534 : getuid(); }

Strings Outcome::changed() const {
  Strings all;
  for (const Json& e : events) {
    if (!e.contains("hook") || e["task"] != -1) continue;
    for (const auto& change : e["changed"])
      all.push_back(e["hook"].get<std::string>() + ": " + change.get<std::string>());
  }
  return all;
}

Strings Outcome::logged() const {
  Strings all;
  for (const Json& e : events)
    if (e.contains("log")) all.push_back(e["text"].get<std::string>());
  return all;
}

std::optional<Rank> Outcome::rank(int i) const {
  for (const Json& e : events)
    if (e.contains("rank") && e["rank"] == i) return Rank{e["env"], e["cpus"], e["memory"]};
  return std::nullopt;
}

int Outcome::rank_status(int i) const {
  for (const Json& e : events)
    if (e.contains("ended") && e["ended"] == i)
      return e.contains("signal") ? 128 + e["signal"].get<int>() : e["status"].get<int>();
  return -1;
}

bool Outcome::drained() const {
  for (const Json& e : events)
    if (e.contains("drained") || e.contains("failed")) return true;
  return false;
}

bool Outcome::answered_zero() const {
  for (const Json& e : events)
    if (e.contains("hook") && e["rc"] != 0) return false;
  return true;
}

Step::Step(const Build& build) : build_(build) {
  // The planner runs as the user, who must be able to reach it.
  chmod(dir.path().c_str(), 0755);
  planner_path = dir / "planner";
  config_path = dir / "gpu-bind.conf";
  request = {{"plugin", build.plugin},
             {"context", "remote"},
             {"required", false},
             {"args", {"planner=" + planner_path, "config=" + config_path}},
             {"options", {{"gpu-bind-policy", "auto"}}},
             {"uid", user()},
             {"gid", getuid() == 0 ? 65534 : getgid()},
             {"id", 0},
             {"node", 0},
             {"ranks", 2},
             {"cores", "0-1"},
             {"env", {{"SLURM_STEP_GPUS", "0,1"}, {"CUDA_VISIBLE_DEVICES", "0,1"}}}};
  config("timeout-ms=10000");
}

void Step::planner(const std::string& script) {
  write_file(planner_path, "#!/bin/sh\n" + script + '\n');
  chmod(planner_path.c_str(), 0755);
}

void Step::answer(const Strings& ranks) {
  std::string text = "gpu-bind-wire 1\ndigest beef\n";
  for (const std::string& lines : ranks) text += lines + '\n';
  const std::string path = dir / "answer";
  write_file(path, text + "end\n");
  planner("exec cat " + path);
}

void Step::config(const std::string& text) {
  write_file(config_path, text + '\n');
  chmod(config_path.c_str(), 0644);
}

void Step::start() {
  write_file(dir / "request", request.dump());
  fs::remove(dir / "events");
  Strings line = {build_.program, dir / "request", dir / "events"};
  line.insert(line.end(), words.begin(), words.end());
  std::vector<char*> argv;
  for (std::string& word : line) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string out = dir / "out", err = dir / "err";
  pid_ = fork();
  if (pid_ != 0) return;
  for (const auto& [path, fd] : {std::pair(out, 1), std::pair(err, 2)}) {
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0 || dup2(file, fd) < 0) _exit(95);
  }
  if (in_child) in_child();
  execv(argv[0], argv.data());
  _exit(96);
}

Outcome Step::finish() {
  Outcome o;
  int status = 0;
  waitpid(pid_, &status, 0);
  o.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  o.out = read_file(dir / "out");
  o.err = read_file(dir / "err");
  std::istringstream lines(read_file(dir / "events"));
  for (std::string line; std::getline(lines, line);) o.events.push_back(Json::parse(line));
  return o;
}

Outcome Step::run() {
  start();
  return finish();
}

}  // namespace harness
