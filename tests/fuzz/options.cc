#include "spank/options.h"

#include "fuzz.h"
#include "spank/asked.h"

namespace fuzz {

using namespace trainlaunch::plugin;

void options(std::string_view input) {
  for (int id = 0; id < option_count; ++id) {
    Options o;
    const bool valid = valid_option(id, input);
    require(o.set(id, input) == valid, "set takes what is valid");
    require(o.any(), "a wrong value asks too");
    require(o.get(id) == (valid ? input : std::string_view()), "and keeps it as it is");
    if (valid) require(all_printable(input), "nothing unprintable reaches the planner");
    for (const bool variable : {false, true}) require_line(refusal(id, variable, input).view());
  }
  const std::string text(input);
  const Asked asked = parse_asked(input);
  const Asked again = parse_asked(asked.text().view());
  require(again.cpu == asked.cpu && again.mem == asked.mem && again.gpu == asked.gpu,
          "what was asked survives the way to the node");

  GpuRequest request;
  for (const char* name : {"--gpu-bind", "--tres-bind", "--tres-per-task", "--gpus-per-task"})
    request.option(name, text.c_str());
  std::string_view rest = input, word;
  while (next_part(rest, ' ', word)) request.argument(std::string(word).c_str());
  request.binds();
}

}  // namespace fuzz
