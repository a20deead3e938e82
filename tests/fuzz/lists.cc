#include "fuzz.h"
#include "spank/answer.h"
#include "topo/cpuset.h"

namespace fuzz {

using namespace trainlaunch;

void lists(std::string_view input) {
  if (const auto sequence = parse_sequence(input, 4096)) {
    require(sequence->size() <= 4096, "no more than there are");
    for (const int i : *sequence) require(i >= 0 && i < 4096, "numbers in range");
  }
  const auto cpus = parse_cpus(input);
  plugin::CpuBits bits;
  const bool plugin_takes = plugin::parse_list(input, bits);
  if (!cpus) {
    require(!cpus.error().what.empty(), "an error says something");
    return;
  }
  const auto again = parse_cpus(to_list(*cpus));
  require(cpus->none() || (again && *again == *cpus), "what is written is read as it was");
  // What the planner writes the plugin reads; it is not as patient with what people write.
  if (cpus->none()) return;
  plugin::CpuBits written;
  require(plugin::parse_list(to_list(*cpus), written), "the plugin reads the planner's lists");
  for (int i = 0; i < gpu_bind_wire::max_cpus; ++i) {
    require(written.test(i) == cpus->test(static_cast<size_t>(i)), "as it meant them");
    if (plugin_takes) require(bits.test(i) == written.test(i), "in any form");
  }
}

}  // namespace fuzz
