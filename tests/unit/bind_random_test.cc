// What holds for every plan, tried on machines, allocations and policies drawn at random.
#include <doctest/doctest.h>

#include <map>
#include <random>
#include <set>

#include "plans.h"

using namespace trainlaunch;

namespace {

class Dice {
 public:
  explicit Dice(unsigned seed) : random_(seed) {}
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  bool one_in(int n) { return below(n) == 0; }

 private:
  std::mt19937 random_;
};

Machine any_machine(Dice& dice) {
  Machine m = box({1 + dice.below(2), 1 + dice.below(4), 1 + dice.below(12), 1 + dice.below(2), 4});
  const int nodes = static_cast<int>(m.numa.size());
  const auto some_node = [&] { return dice.one_in(12) ? -1 : dice.below(nodes); };
  for (int g = dice.below(17); g > 0; --g) add_gpu(m, some_node());
  for (size_t g = 0; g < m.gpus.size(); ++g) {
    // A whole GPU of one memory node without CPUs of its own, as a job with few CPUs may see it.
    if (dice.one_in(20)) m.gpus[g].place.cpus.reset();
    if (dice.one_in(20)) m.gpus[g].mig = "MIG-" + std::to_string(g);
  }
  for (int n = dice.below(20); n > 0; --n) {
    Nic& nic =
        add_nic(m, some_node(), static_cast<LinkLayer>(dice.below(5)), 100.0 * dice.below(5));
    nic.active = !dice.one_in(8);
    nic.virtual_function = dice.one_in(8);
    if (dice.one_in(8)) nic.opens = false;
    for (size_t g = 0; g < m.gpus.size(); ++g)
      if (dice.one_in(4))
        link(m, static_cast<int>(g), static_cast<int>(m.nics.size()) - 1,
             static_cast<Level>(dice.below(5)), dice.below(6));
  }
  if (dice.one_in(4))
    for (size_t cpu = 0; cpu < m.cpus.size(); ++cpu)
      if (dice.one_in(3)) m.allowed.reset(cpu);
  return m;
}

Allocation any_allocation(Dice& dice, const Machine& m) {
  Allocation a;
  a.ranks = dice.one_in(3) ? 0 : 1 + dice.below(40);
  if (!dice.one_in(3)) {
    a.cores.emplace();
    const int density = 1 + dice.below(6);
    for (size_t c = 0; c < m.cores.size(); ++c)
      if (dice.one_in(density)) a.cores->push_back(static_cast<int>(c));
  }
  if (dice.one_in(2)) {
    a.gpus.emplace();
    for (size_t g = 0; g < m.gpus.size(); ++g)
      if (!dice.one_in(3)) a.gpus->push_back(static_cast<int>(g));
  }
  a.asked = {dice.one_in(8), dice.one_in(8), dice.one_in(8)};
  return a;
}

Policy any_policy(Dice& dice) {
  Policy p;
  p.gpu = static_cast<GpuMode>(dice.below(3));
  for (int i = 1 + dice.below(6); p.gpu == GpuMode::map && i > 0; --i)
    p.map.push_back(dice.below(3));
  p.visible = static_cast<Visible>(dice.below(3));
  p.cpu = static_cast<CpuMode>(dice.below(3));
  p.one_thread = dice.one_in(3);
  p.mem = static_cast<MemMode>(dice.below(3));
  p.nic = static_cast<NicMode>(dice.below(4));
  return p;
}

CpuSet cpus_of_step(const Machine& m, const Allocation& a) {
  if (!a.cores) return m.allowed;
  CpuSet out;
  for (int c : *a.cores)
    for (int cpu : m.cores[static_cast<size_t>(c)].cpus) out.set(static_cast<size_t>(cpu));
  return out & m.allowed;
}

void check_cpus(const Machine& m, const Allocation& a, const Policy& policy, const Plan& p) {
  const CpuSet step = cpus_of_step(m, a);
  CpuSet seen;
  size_t bound = 0, cores = 0;
  for (const Core& c : m.cores)
    cores += std::any_of(c.cpus.begin(), c.cpus.end(),
                         [&](int cpu) { return step.test(static_cast<size_t>(cpu)); });
  for (const RankPlan& r : p.ranks) bound += !r.keep_cpus;
  for (const RankPlan& r : p.ranks) {
    if (r.keep_cpus) continue;
    CHECK(r.cpus.any());
    CHECK((r.cpus & ~step).none());
    if (policy.cpu == CpuMode::local && bound <= cores && p.ranks.size() <= cores)
      CHECK((seen & r.cpus).none());
    seen |= r.cpus;
    // Threads of a core stay together, or one of them is taken.
    for (const Core& core : m.cores) {
      size_t mine = 0, there = 0;
      for (int cpu : core.cpus) {
        mine += r.cpus.test(static_cast<size_t>(cpu));
        there += step.test(static_cast<size_t>(cpu));
      }
      CHECK((mine == 0 || mine == (policy.one_thread ? 1 : there)));
    }
  }
}

void check_gpus(const Machine& m, const Allocation& a, const Policy& policy, const Plan& p) {
  std::set<int> step;
  for (size_t g = 0; g < m.gpus.size(); ++g) step.insert(static_cast<int>(g));
  if (a.gpus) step = {a.gpus->begin(), a.gpus->end()};
  std::map<int, size_t> ranks_of;
  for (const RankPlan& r : p.ranks) {
    CHECK(r.gpus.empty() == !p.binds_gpus);
    CHECK(std::set<int>(r.gpus.begin(), r.gpus.end()).size() == r.gpus.size());
    for (int g : r.gpus) {
      CHECK(step.contains(g));
      ++ranks_of[g];
    }
    for (int n : r.nics) CHECK(p.nics[static_cast<size_t>(n)].used);
  }
  if (!p.binds_gpus) return;
  // Each once before any twice.
  if (policy.gpu != GpuMode::map) {
    size_t least = p.ranks.size(), most = 0;
    for (int g : step) {
      least = std::min(least, ranks_of[g]);
      most = std::max(most, ranks_of[g]);
    }
    CHECK(most - least <= 1);
  }
  if (p.gpu_order.empty()) return;
  CHECK(std::set<int>(p.gpu_order.begin(), p.gpu_order.end()) == step);
  CHECK(p.gpu_order.size() == step.size());
  if (policy.visible == Visible::automatic)
    for (size_t i = 0; i < p.ranks.size(); ++i) CHECK(p.ranks[i].gpus.front() == p.gpu_order[i]);
}

void check_memory(const Machine& m, const Plan& p) {
  for (const RankPlan& r : p.ranks) {
    if (!r.mem) continue;
    CHECK(p.mem != MemMode::off);
    CHECK(std::any_of(m.numa.begin(), m.numa.end(),
                      [&](const NumaNode& n) { return n.node == *r.mem; }));
    if (!r.keep_cpus && !r.gpus.empty()) CHECK(m.numa_of(r.cpus) == *r.mem);
  }
}

}  // namespace

TEST_CASE("whatever the machine, the allocation and the policy") {
  Dice dice(11);
  for (int round = 0; round < 1500; ++round) {
    CAPTURE(round);
    const Machine m = any_machine(dice);
    const Allocation a = any_allocation(dice, m);
    const Policy policy = any_policy(dice);
    const auto made = plan(m, a, policy);
    if (!made) {
      CHECK(policy.gpu == GpuMode::map);  // it may name more GPUs than there are
      continue;
    }
    check_cpus(m, a, policy, *made);
    check_gpus(m, a, policy, *made);
    check_memory(m, *made);
    for (const RankPlan& r : made->ranks) CHECK_FALSE(r.why.empty());
    for (const NicChoice& n : made->nics) CHECK(n.used == n.why.empty());
    CHECK(digest(m, *made) == digest(m, *plan(m, a, policy)));
  }
}

TEST_CASE("numbers that cannot be are refused with one line, or left out") {
  const int numbers[] = {-2147483647 - 1, -1, 0, 7, 8, 4095, 1 << 20, 2147483647};
  for (const GpuMode mode : {GpuMode::automatic, GpuMode::closest, GpuMode::map, GpuMode::off})
    for (int ranks : numbers)
      for (int gpu : numbers)
        for (int core : numbers) {
          Allocation a;
          a.ranks = ranks;
          a.gpus = {gpu, 0, gpu};
          a.cores = {core, core};
          Policy p;
          p.gpu = mode;
          p.map = {gpu, core};
          const auto made = plan(hgx_h100(), a, p);
          if (!made) CHECK(made.error().what.find('\n') == std::string::npos);
          if (made) CHECK(made->ranks.size() <= static_cast<size_t>(max_local_ranks));
        }
}
