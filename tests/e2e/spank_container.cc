// A plugin for the tests that does to a rank what pyxis does: in task_init it enters a mount
// namespace in which another /etc lies, and sets the environment of the container over the rank's.
// That is the environment of the task that came first and started the container, as all tasks of a
// node share it.
//
// plugstack.conf: required spank_container.so etc=DIR shared=DIR
// DIR of `etc` becomes /etc; in DIR of `shared` the first task leaves its environment.

#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#pragma GCC visibility push(default)
extern "C" {
#include <slurm/spank.h>
extern const char plugin_name[];
extern const char plugin_type[];
extern const unsigned int plugin_version;
extern const unsigned int spank_plugin_version;
}
#pragma GCC visibility pop
SPANK_PLUGIN(container, 1)

namespace {

std::string argument(int argc, char** argv, const std::string& key) {
  for (int i = 0; i < argc; ++i)
    if (std::string(argv[i]).rfind(key + "=", 0) == 0) return argv[i] + key.size() + 1;
  return "";
}

// Slurm tells tasks apart by these: a container's start does not see them either.
bool of_slurm(const std::string& variable) {
  return variable.rfind("SLURM", 0) == 0 || variable.rfind("PMI", 0) == 0;
}

// The file with the container's environment, written by the first to come.
std::string start_container(spank_t sp, const std::string& shared) {
  unsigned job = 0, step = 0;
  spank_get_item(sp, S_JOB_ID, &job);
  spank_get_item(sp, S_JOB_STEPID, &step);
  const std::string file = shared + "/env." + std::to_string(job) + "." + std::to_string(step);
  const int lock = open((file + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  flock(lock, LOCK_EX);
  if (access(file.c_str(), F_OK) != 0) {
    char** env = nullptr;
    spank_get_item(sp, S_JOB_ENV, &env);
    std::ofstream out(file, std::ios::binary);
    for (; env && *env; ++env)
      if (!of_slurm(*env)) out << *env << '\0';
  }
  close(lock);
  return file;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int slurm_spank_task_init(spank_t sp, int argc,
                                                                            char** argv) {
  unsigned step = 0;
  if (spank_get_item(sp, S_JOB_STEPID, &step) != ESPANK_SUCCESS || step > 0xfffffff0u) return 0;
  const std::string file = start_container(sp, argument(argc, argv, "shared"));
  const std::string etc = argument(argc, argv, "etc");
  if (unshare(CLONE_NEWNS) != 0 ||
      mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount(etc.c_str(), "/etc", nullptr, MS_BIND, nullptr) != 0) {
    perror("container: its /etc");
    return -1;
  }
  std::ifstream in(file, std::ios::binary);
  for (std::string variable; std::getline(in, variable, '\0');) {
    const size_t equals = variable.find('=');
    if (equals != std::string::npos)
      spank_setenv(sp, variable.substr(0, equals).c_str(), variable.c_str() + equals + 1, 1);
  }
  return 0;
}
