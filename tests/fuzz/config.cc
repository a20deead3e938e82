#include "fuzz.h"
#include "spank/files.h"
#include "spank/settings.h"

namespace fuzz {

using namespace trainlaunch;

void config(std::string_view input) {
  const std::string text(input);
  Settings settings;
  const auto read = parse_config(settings, text, "gpu-bind.conf", "n1");
  if (!read) require(!read.error().what.empty(), "an error says something");

  plugin::Site site;
  plugin::Reason why;
  const bool good = plugin::parse_site(input, "gpu-bind.conf", site, why);
  if (!good) require(!why.empty(), "an error says something");
  if (!read) return;
  require(good, "the plugin takes what the planner takes");
  require(static_cast<int>(site.timeout_ms) == settings.timeout_ms, "the same deadline");
  require(site.strict == settings.strict, "the same strictness");
  const auto same = [&](plugin::Site::Bind a, BindSwitch b) {
    return (site.bind == a) == (settings.bind == b);
  };
  require(same(plugin::Site::on_request, BindSwitch::on_request) &&
              same(plugin::Site::always, BindSwitch::always) &&
              same(plugin::Site::off, BindSwitch::off),
          "the same switch");
}

}  // namespace fuzz
