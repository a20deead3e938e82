#include "env/hosts.h"

#include "fuzz.h"

namespace fuzz {

using namespace trainlaunch;

void hosts(std::string_view input) {
  constexpr size_t limit = 100;
  const auto names = expand_hosts(input, limit);
  if (!names) {
    require(!names.error().what.empty(), "an error says something");
    require(!hosts_contain(input, "n1"), "a list that is none holds no one");
    return;
  }
  require(names->size() <= limit, "no more than asked for");
  for (const std::string& name : *names) {
    require(!name.empty(), "every host has a name");
    require(hosts_contain(input, name), "who is in the list is found there");
  }
}

}  // namespace fuzz
