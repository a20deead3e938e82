// gpu-bind: the planner, for the plugin (which runs `gpu-bind plan --format=wire`) and for people.
#include <cstdio>
#include <iostream>

#include "arguments.h"
#include "base/printable.h"
#include "cache.h"
#include "commands.h"
#include "config.h"

namespace trainlaunch {
namespace {

constexpr const char* synopsis =
    "usage: gpu-bind plan [options]    who gets what: GPU, port, CPUs and memory of each rank\n"
    "       gpu-bind show [options]    the machine: GPUs, ports, CPUs, and who is near whom\n"
    "       gpu-bind check [options]   in a rank: what it really has, against the plan\n"
    "       gpu-bind doctor [options] [FILE...]   what is wrong with a job, and what mends it\n"
    "       gpu-bind cache --cache=DIR   keep this node's topology for the plugin, as root\n"
    "       gpu-bind --help | --version\n";

int run(int argc, char** argv) {
  const auto options = describe_options();
  auto a = parse_arguments(argc, argv, options);
  // The plugin reads standard output only.
  const auto tell = [&](const Error& e, bool wire) {
    if (wire)
      std::cout << "error " << one_line(e.what) << '\n';
    else
      std::cerr << "gpu-bind: " << one_line(e.what) << '\n';
    return e.exit;
  };
  if (!a) {
    bool wire = false;
    for (int i = 1; i < argc; ++i) wire = wire || std::string_view(argv[i]) == "--format=wire";
    return tell(a.error(), wire);
  }
  if (a->command == "help") std::cout << synopsis << '\n' << options;
  if (a->command == "version") std::cout << "gpu-bind (" PACKAGE_NAME ") " PACKAGE_VERSION "\n";
  Status s;
  if (a->command == "plan") s = print_plan(*a);
  if (a->command == "show") s = print_machine(*a);
  if (a->command == "cache") s = write_cache(a->cache);
  bool good = true;
  if (a->command == "check" || a->command == "doctor") {
    if (auto answer = a->command == "check" ? check(*a) : diagnose_job(*a))
      good = *answer;
    else
      s = forward(answer);
  }
  if (!s) return tell(s.error(), a->format == Format::wire);
  std::cout.flush();
  return std::cout && good ? exit_code::done : exit_code::failed;
}

}  // namespace
}  // namespace trainlaunch

int main(int argc, char** argv) {
  try {
    trainlaunch::isolate_hwloc();
    return trainlaunch::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gpu-bind: %s\n", trainlaunch::one_line(e.what()).c_str());
    return trainlaunch::exit_code::failed;
  }
}
