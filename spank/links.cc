#include "links.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace trainlaunch {

std::vector<Link> links_of(const Machine& m, const RankPlan& rank) {
  std::vector<Link> out;
  if (rank.gpus.empty() || rank.nics.empty()) return out;
  const auto near = [&](int g, int n) {
    return m.near[static_cast<size_t>(g)][static_cast<size_t>(n)];
  };
  std::map<int, int> gpu_links, nic_links;
  const auto link = [&](int g, int n) {
    out.push_back({g, n, near(g, n).level});
    ++gpu_links[g];
    ++nic_links[n];
  };
  for (const int g : rank.gpus)
    link(g, *std::min_element(rank.nics.begin(), rank.nics.end(), [&](int a, int b) {
           return std::make_tuple(near(g, a), nic_links[a]) <
                  std::make_tuple(near(g, b), nic_links[b]);
         }));
  for (const int n : rank.nics)
    if (nic_links[n] == 0)
      link(*std::min_element(rank.gpus.begin(), rank.gpus.end(),
                             [&](int a, int b) {
                               return std::make_tuple(near(a, n), gpu_links[a]) <
                                      std::make_tuple(near(b, n), gpu_links[b]);
                             }),
           n);
  std::sort(out.begin(), out.end(), [](const Link& a, const Link& b) {
    return std::tie(a.gpu, a.nic) < std::tie(b.gpu, b.nic);
  });
  return out;
}

}  // namespace trainlaunch
