#include "spank/facts.h"

#include "fuzz.h"
#include "spank/check.h"

namespace fuzz {

using namespace trainlaunch;

void facts(std::string_view input) {
  const auto all = parse_facts(input, "facts");
  if (!all) {
    require(!all.error().what.empty(), "an error says something");
  } else {
    for (const RankFacts& one : *all) {
      facts_json(one, longest_line);
      check_text(one, "");
    }
  }
  const std::string text(input);
  for (const int rank : {0, 1}) expect_json(text, "plan", rank);
}

}  // namespace fuzz
