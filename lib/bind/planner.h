// The work behind plan(): one object for one plan, in the order of run(). Its parts are in plan.cc
// (the allocation and the GPUs), cpus.cc (CPUs and memory) and tell.cc (what should be said).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bind/bind.h"
#include "bind/parts.h"

namespace trainlaunch {

std::string count_of(size_t n, const char* one, const char* many);  // "1 GPU", "2 GPUs"

class Planner {
 public:
  Planner(const Machine& m, const Allocation& a, const Policy& p) : m_(m), a_(a), p_(p) {}
  Result<Plan> run();

 private:
  // plan.cc
  Status take_allocation();
  void take_cores_of_step();
  Status give_gpus();
  Result<std::vector<std::vector<int>>> choose_gpus(const std::vector<std::vector<int>>& pairs);
  Result<std::vector<std::vector<int>>> mapped_gpus();
  void see_gpus();

  // cpus.cc
  void give_cpus();
  std::string why_leave_cpus(const RankPlan& r) const;  // empty: they are given
  void give_nodes(const std::vector<size_t>& ranks);
  void give_shares(const std::vector<size_t>& ranks);
  void give_split(const std::vector<size_t>& ranks);
  void take_cores(RankPlan& r, const CoreShare& share, const std::string& how);
  std::string where_is(const CoreShare& share, const CoreWish& wish) const;
  void leave_cpus(RankPlan& r, const std::string& why);
  std::vector<int> threads(int core) const;  // what the step may use of it
  void give_memory();
  int memory_node(const RankPlan& r) const;
  void give_ports_by_cpus();

  // tell.cc
  void tell_gpus();
  void tell_sharing(const std::map<int, size_t>& users);
  void tell_instances();
  void tell_cores(bool doubled, const std::vector<size_t>& one_core);
  void tell_idle_cores();
  void tell_ports();
  void tell_slow(size_t nic);
  void tell_places();
  int loser(size_t nic) const;
  bool has_like(const RankPlan& r, size_t nic) const;

  const Gpu& gpu(int g) const { return m_.gpus[static_cast<size_t>(g)]; }
  const Core& core(int c) const { return m_.cores[static_cast<size_t>(c)]; }
  const Nic& nic(int n) const { return m_.nics[static_cast<size_t>(n)]; }
  std::string name(int g) const {
    return "GPU " + std::to_string(g) + (m_.made_up_ids ? "" : ' ' + to_string(gpu(g)));
  }
  void warn(const char* code, std::string message, std::string fix, bool quiet = false) {
    plan_.warnings.push_back({code, std::move(message), std::move(fix), quiet});
  }
  bool warned(const char* code) const;
  // Of a rank that spans.
  const char* apart() const {
    return m_.numa.empty() ? "its GPUs are beside different CPUs"
                           : "its GPUs are on several memory nodes";
  }
  bool closest() const { return p_.gpu == GpuMode::closest && cores_known_; }

  const Machine& m_;
  const Allocation& a_;
  const Policy& p_;
  Plan plan_;
  CpuSet allowed_;
  std::vector<int> cores_;  // that the step may use
  bool cores_known_ = true;
  std::vector<CoreShare> split_;  // for GpuMode::closest: of each rank
};

}  // namespace trainlaunch
