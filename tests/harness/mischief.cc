// A planner that cannot be written as a script; what it does is its name.
//   vfork    waits for a child, as nothing but a kill can interrupt
//   sleeper  does nothing, for long
//   orphan   leaves the pipe to a process of another session
#include <fcntl.h>
#include <unistd.h>

#include <cstring>

int main(int, char** argv) {
  const char* slash = std::strrchr(argv[0], '/');
  const char* name = slash ? slash + 1 : argv[0];
  if (std::strcmp(name, "vfork") == 0) {
    if (vfork() == 0) {
      sleep(60);
      _exit(0);
    }
  } else if (std::strcmp(name, "orphan") == 0) {
    if (fork() == 0) {
      setsid();
      sleep(5);
      // Whoever held the pipe's other end is gone: this must end the process, and harm nobody.
      for (;;)
        if (write(STDOUT_FILENO, "rank 0\n", 7) < 0) _exit(1);
    }
  } else {
    sleep(60);
  }
  return 0;
}
