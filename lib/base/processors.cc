#include "base/processors.h"

#include <sched.h>

#include <array>

namespace trainlaunch {

ProcessorSet allowed_processors() {
  std::array<unsigned long, most_processors / (8 * sizeof(unsigned long))> words{};
  auto* const mask = reinterpret_cast<cpu_set_t*>(words.data());
  ProcessorSet set;
  if (sched_getaffinity(0, sizeof words, mask) != 0) return set;
  for (int cpu = 0; cpu < most_processors; ++cpu)
    if (CPU_ISSET_S(cpu, sizeof words, mask)) set.set(static_cast<size_t>(cpu));
  return set;
}

}  // namespace trainlaunch
