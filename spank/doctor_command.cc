// gpu-bind doctor.
#include <iostream>

#include "commands.h"
#include "doctor.h"
#include "text_file.h"

namespace trainlaunch {
namespace {

Result<std::vector<RankFacts>> read_facts(const Arguments& a) {
  std::vector<RankFacts> all;
  for (const std::string& file : a.files) {
    auto text = read_text(file);
    if (!text) return forward(text);
    auto facts = parse_facts(*text, file == "-" ? "standard input" : file);
    if (!facts) return forward(facts);
    for (RankFacts& f : *facts) all.push_back(std::move(f));
  }
  return all;
}

// The file that a site would give for these nodes.
Status compare_topology(const std::string& file, std::vector<RankFacts>& all) {
  auto machine = load_file(file);
  if (!machine) return forward(machine);
  const std::string cpus = to_list(machine->cpus);
  for (RankFacts& f : all) {
    if (f.source != "live") continue;
    size_t missing = 0;
    for (const Gpu& g : machine->gpus)
      if (!machine->made_up_ids && !f.gpus.contains(to_string(g))) ++missing;
    if (f.machine_cpus != cpus)
      f.warnings["topology-mismatch"] =
          file + " has CPUs " + cpus + ", the node " + f.machine_cpus + ": the file is not its";
    else if (missing > 0)
      f.warnings["topology-mismatch"] = file + " has GPUs at other PCI functions than the node";
  }
  return {};
}

}  // namespace

Result<bool> diagnose_job(const Arguments& a) {
  // The file is not the machine here, but what is compared with it.
  Arguments here = a;
  here.topology.clear();
  auto facts = a.files.empty() ? own_facts(here) : read_facts(a);
  if (!facts) return forward(facts);
  if (!a.topology.empty())
    if (auto s = compare_topology(a.topology, *facts); !s) return forward(s);
  const std::vector<Finding> findings = diagnose(*facts);
  std::cout << (a.format == Format::json ? findings_json(findings, *facts)
                                         : findings_text(findings, *facts));
  return findings.empty() || findings.front().severity == Severity::advice;
}

}  // namespace trainlaunch
