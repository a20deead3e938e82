// gpu-bind check.
#include <cstdlib>
#include <iostream>

#include "check.h"
#include "commands.h"
#include "files.h"
#include "fit.h"
#include "gather.h"
#include "text_file.h"

namespace trainlaunch {
namespace {

// What NCCL's configuration files set, of what a plan may set.
std::vector<std::string> set_by_nccl_conf(const Expectation& e) {
  static plugin::NcclConf conf;
  conf.read(std::getenv("NCCL_CONF_FILE"), std::getenv("HOME"));
  std::vector<std::string> out;
  for (const Variable& v : e.env)
    if (conf.sets(v.name.c_str())) out.push_back(v.name);
  return out;
}

// Slurm's words for the step's GPUs: those that the planner was told, or what every rank has where
// Slurm binds none of them.
std::map<std::string, int> words_of_gpus(const Arguments& a) {
  std::map<std::string, int> out;
  if (a.allocation.gpus && a.allocation.gpus->size() == a.devices.size())
    for (size_t i = 0; i < a.devices.size(); ++i) out[a.devices[i]] = (*a.allocation.gpus)[i];
  return out;
}

// The plan that is made again for this rank, and the devices that it is made of. An error says why
// there is none.
Result<Expectation> plan_again(const Arguments& given, RankFacts& facts) {
  std::vector<Warning> warnings;
  auto machine = find_machine(given, warnings);
  if (!machine) return forward(machine);
  const Arguments a = find_gpus(given, *machine, warnings);
  auto made = plan(*machine, a.allocation, a.settings.policy);
  if (!made) {
    gather_devices(facts, *machine, std::vector<NicChoice>(machine->nics.size()), {});
    return forward(made);
  }
  const Environment env = environment_of(a, *machine, *made);
  if (a.topology.empty() && machine->kind != "live") fit_to_kernel(*made);
  warnings.insert(warnings.end(), made->warnings.begin(), made->warnings.end());
  for (const Warning& w : warnings) facts.warnings.emplace(w.code, w.message);
  gather_devices(facts, *machine, made->nics, words_of_gpus(a));
  auto expected = expect({*machine, *made, env}, facts.local_rank);
  if (expected)
    expected->facts.from = !facts.plan_applied.empty() ? "plugin"
                           : a.plan_asked              ? "options"
                                                       : "allocation";
  return expected;
}

Result<Expectation> plan_in_file(const std::string& path, int rank) {
  auto text = read_text(path);
  if (!text) return forward(text);
  return expect_json(*text, path, rank);
}

// What the environment tells of the allocation, where the plugin left no word.
void complete(Arguments& a, const RankFacts& facts) {
  if (a.allocation.ranks == 0) a.allocation.ranks = facts.local_ranks;
  if (a.node.empty()) a.node = facts.node;
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"})
    if (const char* list = std::getenv(name); list && a.nodelist.empty()) a.nodelist = list;
  const char* gpus = std::getenv("SLURM_STEP_GPUS");
  if (a.allocation.gpus || !gpus || facts.step.empty()) return;
  if (auto list = parse_list(gpus, 4096)) a.allocation.gpus = std::move(*list);
}

// What this process has, against its plan; `reason` says why there is none.
Result<RankFacts> look(Arguments a, std::string& reason) {
  RankFacts facts;
  gather_process(facts);
  complete(a, facts);
  facts.source = "none";
  auto expected = plan_again(a, facts);
  if (!expected && !a.topology.empty() && facts.source == "none") return forward(expected);
  if (!expected) reason = expected.error().what;
  if (!a.plan.empty()) {
    expected = plan_in_file(a.plan, facts.local_rank);
    if (!expected) return forward(expected);
  }
  // A site's own variables too, whatever their names.
  if (expected)
    for (const Variable& v : expected->env)
      if (const char* value = std::getenv(v.name.c_str())) facts.env[v.name] = value;
  if (expected) compare(facts, *expected, set_by_nccl_conf(*expected));
  return facts;
}

}  // namespace

Result<std::vector<RankFacts>> own_facts(const Arguments& a) {
  std::string reason;
  auto facts = look(a, reason);
  if (!facts) return forward(facts);
  return std::vector<RankFacts>{std::move(*facts)};
}

Result<bool> check(const Arguments& a) {
  std::string reason;
  auto facts = look(a, reason);
  if (!facts) return forward(facts);
  // srun mixes the long lines of several tasks.
  const bool alone = facts->step.empty() || facts->ranks == 1;
  if (a.format == Format::json)
    std::cout << facts_json(*facts, alone ? 0 : longest_line);
  else
    std::cout << check_text(*facts, reason);
  // Where no plan was applied or asked for nothing has to match; a rank that fails could end the
  // others before they are heard.
  const bool has_to_match = !facts->plan_applied.empty() || !a.plan.empty() || a.plan_asked;
  if (a.format == Format::json && !has_to_match) return true;
  return facts->planned && facts->planned->from != "allocation" && facts->differs.empty();
}

}  // namespace trainlaunch
