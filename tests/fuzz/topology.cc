#include <sys/mman.h>

#include "bind/bind.h"
#include "env/env.h"
#include "fuzz.h"
#include "spank/answer.h"
#include "spank/report.h"
#include "topo/topo.h"

// Called when a sanitizer has something to say. hwloc is tried on each file in a process of its
// own, which may break down; what a sanitizer finds there is ours to mend all the same.
extern "C" void __sanitizer_set_death_callback(void (*)());

namespace fuzz {

using namespace trainlaunch;

namespace {

// Shared with those processes.
bool* alarm() {
  static bool* const flag = [] {
    void* page =
        mmap(nullptr, sizeof(bool), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(page != MAP_FAILED, "a page");
    return static_cast<bool*>(page);
  }();
  return flag;
}

void plan_for(const Machine& machine, int ranks) {
  Allocation allocation;
  if (ranks > 0) allocation.ranks = ranks;
  auto made = plan(machine, allocation, Policy());
  if (!made) return require(!made.error().what.empty(), "an error says something");
  const Environment env = environment(machine, *made, EnvOptions());
  const trainlaunch::Answer answer{machine, *made, env};
  plan_text(answer);
  plan_json(answer);
  auto wire = plan_wire(answer, Report::full, "n1");
  if (!wire) return;
  plugin::Answer read;
  plugin::Reason why;
  const bool taken =
      read.read(wire->data(), wire->size(), static_cast<unsigned>(made->ranks.size()), why);
  if (!taken) std::fprintf(stderr, "%s\n", why.c_str());
  require(taken, "the plugin takes what the planner writes");
}

}  // namespace

void topology(std::string_view input) {
  static const bool once = [] {
    isolate_hwloc();
    alarm();
    __sanitizer_set_death_callback([] { *alarm() = true; });
    return true;
  }();
  require(once && !*alarm(), "no sanitizer has stopped a trial");
  const auto machine = load_text(std::string(input), "file");
  if (*alarm()) std::abort();
  if (!machine) return require(!machine.error().what.empty(), "an error says something");
  require(machine->near.size() == machine->gpus.size(), "distances of each GPU");
  for (const auto& row : machine->near) require(row.size() == machine->nics.size(), "to each port");
  for (const int ranks : {0, 1, 3}) plan_for(*machine, ranks);
}

}  // namespace fuzz
