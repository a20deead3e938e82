#include "commands.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "base/printable.h"
#include "cache.h"
#include "doctor_plan.h"
#include "env/nccl_topology.h"
#include "fit.h"
#include "picture.h"
#include "report.h"

namespace trainlaunch {
namespace {

Status print(Result<std::string> text) {
  if (!text) return forward(text);
  std::cout << *text;
  return {};
}

// Colours and the width of a terminal on one; neither in a pipe or a file.
TextStyle style_of_output() {
  TextStyle style;
  if (!isatty(STDOUT_FILENO)) return style;
  const auto is_set = [](const char* name) {
    const char* value = std::getenv(name);
    return value && *value;
  };
  const char* terminal = std::getenv("TERM");
  style.colour = !is_set("NO_COLOR") && is_set("TERM") && std::string_view(terminal) != "dumb";
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    style.width = std::clamp<size_t>(size.ws_col, 60, 160);
  return style;
}

// People get the machine as it is now, however long that takes.
Result<Machine> this_machine(const Arguments& a, std::vector<Warning>& warnings) {
  if (a.cache.empty() || a.format != Format::wire) return load_live();
  std::string why;
  if (auto machine = read_cache(a.cache, why)) return std::move(*machine);
  warnings.push_back({"cache-not-used", "the topology cache is not used: " + why,
                      "gpu-bind cache --cache=" + a.cache + " as root, or a restart of slurmd",
                      true});
  return load_live();
}

Result<Machine> find_source(const Arguments& a, std::vector<Warning>& warnings) {
  if (!a.topology.empty()) return load_file(a.topology);
  if (a.settings.topology.empty()) return this_machine(a, warnings);
  auto file = load_file(a.settings.topology);
  if (!file || !a.settings.topology_check) return file;
  auto live = this_machine(a, warnings);
  if (!live) return live;
  const std::string why = why_unlike(*file, *live);
  if (why.empty()) return file;
  warnings.push_back({"topology-mismatch",
                      a.settings.topology + ' ' + why + ": the file is not used",
                      "make the file on a node of this kind: lstopo --of xml", false});
  return live;
}

}  // namespace

Result<Machine> find_machine(const Arguments& a, std::vector<Warning>& warnings) {
  auto machine = find_source(a, warnings);
  if (machine) warnings.insert(warnings.end(), machine->warnings.begin(), machine->warnings.end());
  return machine;
}

Arguments find_gpus(Arguments a, const Machine& machine, std::vector<Warning>& warnings) {
  if (!a.allocation.gpus) return a;
  StepGpus step = find_gpus(machine, *a.allocation.gpus, a.devices);
  a.allocation.gpus = std::move(step.gpus);
  a.devices = std::move(step.words);
  warnings.insert(warnings.end(), step.warnings.begin(), step.warnings.end());
  return a;
}

Environment environment_of(const Arguments& a, const Machine& machine, const Plan& plan) {
  Environment env;
  if (a.settings.policy.gpu == GpuMode::off) {
    env.ranks.resize(plan.ranks.size());
    return env;
  }
  EnvOptions options;
  options.mode = a.settings.env;
  options.devices = a.devices;
  options.nics_from = a.settings.nic_from;
  options.variables = a.settings.variables;
  options.nccl_topology = a.settings.nccl_topology;
  if (!a.nodelist.empty())
    // A quarter of the time: a name that does not resolve must not cost the whole answer.
    options.route =
        route_to_peer(a.nodelist, a.node, Deadline::in(Seconds(a.settings.timeout_ms / 4000.0)));
  return environment(machine, plan, options);
}

Status print_machine(const Arguments& a) {
  std::vector<Warning> warnings;
  auto machine = find_machine(a, warnings);
  if (!machine) return forward(machine);
  std::vector<int> gpus;
  for (const Gpu& g : machine->gpus) gpus.push_back(g.index);
  auto nics = choose_nics(*machine, gpus, a.settings.policy);
  if (!nics) return forward(nics);
  auto text = a.format == Format::nccl_xml ? nccl_topology(*machine, this_cpu())
              : a.format == Format::svg    ? machine_svg(*machine, *nics)
              : a.format == Format::json   ? machine_json(*machine, *nics)
                                           : machine_text(*machine, *nics, style_of_output());
  // Where it fails the error stands alone.
  if (text)
    for (const Warning& w : warnings) std::cerr << "gpu-bind: " << one_line(w.message) << '\n';
  return print(std::move(text));
}

Status print_plan(const Arguments& given) {
  const bool wanted = given.settings.bind == BindSwitch::always ||
                      (given.settings.bind == BindSwitch::on_request && given.requested);
  if (given.format == Format::wire && (!wanted || given.settings.policy.gpu == GpuMode::off)) {
    std::cout << empty_wire();
    return {};
  }
  std::vector<Warning> warnings;
  auto machine = find_machine(given, warnings);
  if (!machine) return forward(machine);
  const Arguments a = find_gpus(given, *machine, warnings);
  auto made = plan(*machine, a.allocation, a.settings.policy);
  if (!made) return forward(made);
  made->warnings.insert(made->warnings.begin(), warnings.begin(), warnings.end());

  const Environment env = environment_of(a, *machine, *made);
  made->warnings.insert(made->warnings.end(), env.warnings.begin(), env.warnings.end());
  // What a file says and the kernel does not have can be shown, but not applied.
  if (a.format == Format::wire && a.topology.empty() && machine->kind != "live")
    fit_to_kernel(*made);
  if (a.format == Format::wire && a.settings.strict)
    if (auto all = all_applied(*made); !all) return all;

  const Answer answer{*machine, *made, env};
  std::vector<Finding> findings;
  if (a.format == Format::wire && a.settings.report == Report::doctor)
    findings = diagnose_plan(answer, a.node, a.environment);
  return print(a.format == Format::wire   ? plan_wire(answer, a.settings.report, a.node, findings)
               : a.format == Format::svg  ? plan_svg(answer)
               : a.format == Format::json ? plan_json(answer)
                                          : plan_text(answer, style_of_output()));
}

}  // namespace trainlaunch
