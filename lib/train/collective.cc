#include "train/collective.h"

#include <algorithm>
#include <charconv>

namespace trainlaunch {

namespace {

// Until all ranks have read their files: as long as storage may take.
constexpr Seconds patience{1800};

// "<exit code> <text>"; empty: all is well.
std::string encode(const Status& s) {
  return s ? "" : std::to_string(s.error().exit) + " " + s.error().what;
}

Error decode(const std::string& text) {
  Error e;
  const char* end = text.data() + text.size();
  const char* rest = std::from_chars(text.data(), end, e.exit).ptr;
  e.what = rest == end ? "" : std::string(rest + 1, end);
  return e;
}

}  // namespace

Status all_well(Control& control, std::string_view what, const Status& mine) {
  auto all = control.gather(what, encode(mine), Deadline::in(patience));
  if (!all) return forward(all);
  const auto bad =
      std::find_if(all->begin(), all->end(), [](const std::string& s) { return !s.empty(); });
  if (bad == all->end()) return {};
  Error e = decode(*bad);
  const bool same =
      std::all_of(all->begin(), all->end(), [&](const std::string& s) { return s == *bad; });
  if (!same) {
    const World& w = control.world();
    const auto rank = static_cast<int>(bad - all->begin());
    e.what = "rank " + std::to_string(rank) + " (" + w.node_name(rank) + "): " + e.what;
  }
  return tl::unexpected<Error>(e);
}

}  // namespace trainlaunch
