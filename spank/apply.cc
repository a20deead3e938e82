#include "apply.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cerrno>

namespace trainlaunch::plugin {
namespace {

// linux/mempolicy.h; named here because old headers lack the third.
constexpr int mpol_preferred = 1, mpol_bind = 2, mpol_preferred_many = 5;

long set_mempolicy(int mode, const MemBits& nodes) {
  // The kernel looks at one bit less than it is told.
  return syscall(SYS_set_mempolicy, mode, nodes.word, gpu_bind_wire::max_mems + 1ul);
}

// The set bits in Linux list form, for the line that tells about them.
template <int N>
Fixed<256> list_of(const Bits<N>& bits) {
  Fixed<256> list;
  for (int i = 0; i < N; ++i) {
    if (!bits.test(i)) continue;
    int last = i;
    while (last + 1 < N && bits.test(last + 1)) ++last;
    if (!list.empty()) list += ",";
    list += static_cast<long>(i);
    if (last > i) {
      list += "-";
      list += static_cast<long>(last);
    }
    i = last;
  }
  return list;
}

bool get_mask(CpuBits& mask) {
  return sched_getaffinity(0, sizeof mask.word, reinterpret_cast<cpu_set_t*>(mask.word)) == 0;
}

bool set_mask(const CpuBits& mask) {
  return sched_setaffinity(0, sizeof mask.word, reinterpret_cast<const cpu_set_t*>(mask.word)) == 0;
}

}  // namespace

bool apply_cpus(const CpuBits& want, Within within, Reason& why) {
  CpuBits before, allowed, mask;
  if (!get_mask(before)) {
    why.set("CPUs: ", strerrordesc_np(errno));
    return false;
  }
  allowed = before;
  if (within == Within::cpuset) {
    // Asked for every CPU, the kernel gives those of the cpuset.
    CpuBits every;
    for (unsigned long& w : every.word) w = ~0ul;
    if (set_mask(every) && !get_mask(allowed)) allowed = before;
  }
  for (size_t i = 0; i < sizeof mask.word / sizeof *mask.word; ++i)
    mask.word[i] = want.word[i] & allowed.word[i];
  if (mask.none())
    why.set("CPUs ", list_of(want).view(), " are not among its allowed ones, ",
            list_of(allowed).view(), "; mask left as it was");
  else if (set_mask(mask))
    return true;
  else
    why.set("CPUs ", list_of(mask).view(), ": ", strerrordesc_np(errno));
  if (within == Within::cpuset) set_mask(before);
  return false;
}

bool apply_mems(MemPolicy policy, const MemBits& nodes, Reason& why) {
  if (policy == MemPolicy::leave) return true;
  long rc;
  if (policy == MemPolicy::bind) {
    rc = set_mempolicy(mpol_bind, nodes);
  } else {
    rc = set_mempolicy(mpol_preferred_many, nodes);
    // Before Linux 5.15 only one node can be preferred: the first.
    if (rc != 0 && errno == EINVAL) rc = set_mempolicy(mpol_preferred, nodes);
  }
  if (rc == 0) return true;
  why.set("memory nodes ", list_of(nodes).view(), ": ", strerrordesc_np(errno),
          "; policy left as it was");
  return false;
}

}  // namespace trainlaunch::plugin
