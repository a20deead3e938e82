#include "doctor_plan.h"

#include <charconv>

#include "check.h"
#include "gather.h"

namespace trainlaunch {
namespace {

void apply(RankFacts& f, const Expectation& e) {
  for (const std::string& name : e.unset) f.env.erase(name);
  for (const Variable& v : e.env) {
    if (v.set)
      f.env[v.name] = v.value;
    else
      f.env.emplace(v.name, v.value);
  }
  f.mem_policy = "default";
  if (!e.facts.mems) return;
  f.mem_policy = e.mem == MemMode::bind ? "bind" : "preferred";
  f.mem_nodes = *e.facts.mems;
}

// srun hands its own limit on; slurmstepd applies it when it starts the rank.
std::optional<long long> memlock(const std::map<std::string, std::string>& environment) {
  const auto limit = environment.find("SLURM_RLIMIT_MEMLOCK");
  if (limit == environment.end()) return std::nullopt;
  const std::string& text = limit->second;
  long long bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  if (error != std::errc() || end != text.data() + text.size() || bytes < 0) return std::nullopt;
  return bytes;
}

// The words by which the plan's masks name GPUs, from the masks themselves.
std::map<std::string, int> words_of(const Answer& a) {
  std::map<std::string, int> out;
  for (size_t i = 0; i < a.plan.ranks.size() && i < a.env.ranks.size(); ++i) {
    const std::vector<int>& gpus =
        a.plan.gpu_order.empty() ? a.plan.ranks[i].gpus : a.plan.gpu_order;
    for (const auto* list : {&a.env.common, &a.env.ranks[i]})
      for (const Variable& v : *list) {
        if (!v.name.ends_with("_VISIBLE_DEVICES") && v.name != "ZE_AFFINITY_MASK") continue;
        const auto words = words_between(v.value, ',');
        for (size_t w = 0; w < words.size() && w < gpus.size(); ++w) out.emplace(words[w], gpus[w]);
      }
  }
  return out;
}

}  // namespace

std::vector<Finding> diagnose_plan(const Answer& a, const std::string& node,
                                   const std::map<std::string, std::string>& environment) {
  const auto words = words_of(a);
  std::vector<RankFacts> all;
  for (size_t i = 0; i < a.plan.ranks.size(); ++i) {
    auto expected = expect(a, static_cast<int>(i));
    if (!expected) continue;
    RankFacts f;
    f.node = f.host = node;
    f.rank = f.local_rank = static_cast<int>(i);
    f.ranks = f.local_ranks = static_cast<int>(a.plan.ranks.size());
    f.cpus = to_list(a.plan.ranks[i].cpus);
    f.memlock = memlock(environment);
    f.env = environment;
    apply(f, *expected);
    gather_devices(f, a.machine, a.plan.nics, words);
    f.plan_applied = expected->facts.digest;
    f.planned = std::move(expected->facts);
    f.planned->from = "plugin";
    for (const Warning& w : a.plan.warnings) f.warnings.emplace(w.code, w.message);
    all.push_back(std::move(f));
  }
  return diagnose(all);
}

}  // namespace trainlaunch
