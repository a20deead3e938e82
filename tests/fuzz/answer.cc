#include "spank/answer.h"
#include "fuzz.h"

namespace fuzz {

using namespace trainlaunch::plugin;

void answer(std::string_view input) {
  if (input.empty()) return;
  // The first byte is the number of ranks that the plugin asked for.
  const unsigned ranks = static_cast<unsigned char>(input[0]) % 8;
  std::string text(input.substr(1));
  Answer a;
  Reason why;
  if (!a.read(text.data(), text.size(), ranks, why)) {
    require_line(why.view());
    return;
  }
  std::string_view rest = a.node(), said;
  while (Answer::next_text(rest, said))
    for (const char c : said) require(printable(c), "what is printed is printable");
  require(!a.digest().empty() && a.digest().size() <= 64, "a digest");
  for (unsigned i = 0; i < ranks; ++i) {
    const RankPlan plan = a.plan(i);
    require(!plan.has_cpus || !plan.cpus.none(), "a mask is never empty");
    require(plan.mem_policy == MemPolicy::leave || !plan.mems.none(), "nor is a memory policy");
    for (size_t v = 0; v < plan.variable_count; ++v) {
      require(all_printable(plan.variables[v].value), "values are printable");
      const std::string_view name(plan.variables[v].name);
      require(gpu_bind_wire::is_device_variable(name) || gpu_bind_wire::is_network_variable(name),
              "no variable but these");
    }
    rest = a.rank(i);
    while (Answer::next_text(rest, said))
      for (const char c : said) require(printable(c), "what is printed is printable");
  }
}

}  // namespace fuzz
