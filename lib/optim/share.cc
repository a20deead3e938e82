#include "optim/share.h"

#include <algorithm>

namespace trainlaunch {

Share own_share(const Layout& layout, std::span<const Bucket> buckets, ShardPolicy policy,
                int rank) {
  Share share;
  for (const Bucket& b : buckets) {
    const int64_t begin = b.offset + b.owners.offset(rank), end = begin + b.owners.count(rank);
    for (int i = b.first; i < b.last; ++i) {
      const Layout::Entry& e = layout.entries[i];
      Run run{e.param, std::max(begin, e.offset), std::min(end, e.offset + e.whole()),
              share.elements};
      if (run.begin >= run.end) continue;
      share.elements += run.size();
      if (policy == ShardPolicy::none) run.kept = run.begin;
      share.runs.push_back(run);
    }
    share.first.push_back(share.runs.size());
  }
  if (policy == ShardPolicy::none) share.elements = layout.elements();
  return share;
}

Share whole_share(const Layout& layout, std::span<const Bucket> buckets) {
  Share share;
  for (const Bucket& b : buckets) {
    for (int i = b.first; i < b.last; ++i) {
      const Layout::Entry& e = layout.entries[i];
      share.runs.push_back({e.param, e.offset, e.offset + e.whole(), e.offset});
    }
    share.first.push_back(share.runs.size());
  }
  share.elements = layout.elements();
  return share;
}

}  // namespace trainlaunch
