// gpu-bind: the planner, for the plugin (which runs `gpu-bind plan --format=wire`) and for people.
#include <algorithm>
#include <boost/program_options.hpp>
#include <cstdio>
#include <iostream>
#include <map>
#include <sstream>

#include "config.h"
#include "fit.h"
#include "report.h"
#include "settings.h"

namespace po = boost::program_options;

namespace trainlaunch {
namespace {

enum class Format : uint8_t { text, json, wire };

struct Arguments {
  std::string command;
  Format format = Format::text;
  Allocation allocation;
  Settings settings;
  std::string topology;  // given here, not in the configuration: taken as it is
  std::vector<std::string> devices;
  std::string node, nodelist;
  bool requested = true;
};

constexpr const char* synopsis =
    "usage: gpu-bind plan [options]    who gets what: GPU, port, CPUs and memory of each rank\n"
    "       gpu-bind show [options]    the machine: GPUs, ports, CPUs, and who is near whom\n"
    "       gpu-bind --help | --version\n";

// Options that are keys of gpu-bind.conf too.
constexpr const char* shared_keys[] = {"policy", "visible", "cpu",    "mem",
                                       "nic",    "env",     "report", "strict"};

po::options_description describe() {
  po::options_description d("options", 100);
  const auto text = [] { return po::value<std::string>(); };
  auto add = d.add_options();
  add("topology", text()->value_name("FILE"),
      "plan for the machine in FILE (hwloc XML) [this machine]");
  add("format", text()->value_name("FORM"), "text, json, wire [text]");
  add("ranks", text()->value_name("N"), "ranks on this node [one per GPU]");
  add("gpus", text()->value_name("LIST"), "the job step's GPUs, numbered in PCI order [all]");
  add("devices", text()->value_name("LIST"),
      "Slurm's words for these GPUs, as in CUDA_VISIBLE_DEVICES [numbers]");
  add("cores", text()->value_name("LIST"), "the job step's cores, Slurm's numbers [all]");
  add("exclusive", "the whole node is the job's");
  add("asked", text()->value_name("LIST"),
      "of cpu,mem,gpu: bound by Slurm on the user's request, left alone");
  add("policy", text()->value_name("POLICY"), "auto, off [auto]");
  add("visible", text()->value_name("WHICH"), "the GPUs a rank sees: auto, ordered, own [auto]");
  add("cpu", text()->value_name("HOW"), "local, numa, off; local,smt=1 [local]");
  add("mem", text()->value_name("HOW"), "preferred, bind, off [preferred]");
  add("nic", text()->value_name("WHICH"), "auto, closest, all, off, list:NAMES [auto]");
  add("env", text()->value_name("HOW"), "network variables: keep, set, off [keep]");
  add("report", text()->value_name("WHAT"),
      "in wire form: none, summary, full, json, doctor [none]");
  add("strict", text()->value_name("YES|NO"),
      "for the plugin: a rank that cannot be bound fails [no]");
  add("config", text()->value_name("FILE"),
      (std::string("the site's settings [") + default_config + ']').c_str());
  add("node", text()->value_name("NAME"), "this node's name, for reports and routes");
  add("nodelist", text()->value_name("LIST"), "the job's nodes, for the network interface");
  add("requested", text()->value_name("YES|NO"),
      "for the plugin: no, with bind=on-request: plan nothing [yes]");
  add("help", "this text");
  add("version", "the version");
  return d;
}

template <class F>
Status given(const po::variables_map& vm, const char* option, F take) {
  if (!vm.count(option)) return {};
  auto s = take(vm[option].as<std::string>());
  if (!s) return fail(std::string("--") + option + ": " + s.error().what, exit_code::usage);
  return {};
}

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> out;
  std::istringstream in(list);
  for (std::string w; std::getline(in, w, ',');) out.push_back(w);
  return out;
}

// Slurm's words for GPUs: numbers, UUIDs, MIG names.
Status take_devices(Arguments& a, const std::string& value) {
  for (const std::string& w : words_of(value)) {
    if (w.empty() || w.size() > 96 ||
        w.find_first_not_of(
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_:/.") !=
            std::string::npos)
      return fail("not a list of device names", exit_code::usage);
    a.devices.push_back(w);
  }
  return {};
}

Status take_asked(Arguments& a, const std::string& value) {
  for (const std::string& w : words_of(value)) {
    if (w == "cpu")
      a.allocation.asked.cpu = true;
    else if (w == "mem")
      a.allocation.asked.mem = true;
    else if (w == "gpu")
      a.allocation.asked.gpu = true;
    else
      return fail("'" + w.substr(0, 80) + "': use a list of cpu, mem, gpu", exit_code::usage);
  }
  return {};
}

Status take_format(Arguments& a, const std::string& value) {
  if (value == "text")
    a.format = Format::text;
  else if (value == "json")
    a.format = Format::json;
  else if (value == "wire")
    a.format = Format::wire;
  else if (value == "svg")
    return fail("svg is not available in this version; use text, json or wire");
  else
    return fail("'" + value.substr(0, 80) + "': use text, json or wire");
  return {};
}

Status take_ranks(Arguments& a, const std::string& value) {
  auto n = parse_list(value, max_local_ranks + 1);
  if (!n || n->size() != 1 || n->front() < 1)
    return fail("'" + value.substr(0, 80) + "': use 1 to " + std::to_string(max_local_ranks));
  a.allocation.ranks = n->front();
  return {};
}

// An empty list counts as none: who has nothing to say says so.
Status take_numbers(std::optional<std::vector<int>>& to, const std::string& value, int limit) {
  if (value.empty()) return {};
  auto list = parse_sequence(value, limit);
  if (!list) return forward(list);
  to = std::move(*list);
  return {};
}

// Slurm's order need not be PCI order: its words go with their GPUs.
void sort_gpus(Arguments& a) {
  if (!a.allocation.gpus) return;
  std::vector<int>& gpus = *a.allocation.gpus;
  if (gpus.size() == a.devices.size()) {
    std::map<int, std::string> word_of;
    for (size_t i = 0; i < gpus.size(); ++i) word_of.emplace(gpus[i], a.devices[i]);
    a.devices.clear();
    for (auto& [gpu, word] : word_of) a.devices.push_back(std::move(word));
  }
  std::sort(gpus.begin(), gpus.end());
  gpus.erase(std::unique(gpus.begin(), gpus.end()), gpus.end());
}

Status take(Arguments& a, const po::variables_map& vm) {
  const std::string config = vm.count("config") ? vm["config"].as<std::string>() : default_config;
  if (auto s = read_config(a.settings, config, vm.count("config") > 0); !s) return s;
  for (const char* key : shared_keys) {
    if (!vm.count(key)) continue;
    if (auto s = set_option(a.settings, key, vm[key].as<std::string>()); !s)
      return fail("--" + s.error().what, exit_code::usage);
  }
  const auto string = [](std::string& to) {
    return [&to](const std::string& v) -> Status {
      to = v;
      return {};
    };
  };
  std::string requested = "yes";
  Status all[] = {
      given(vm, "topology",
            [&](const std::string& v) -> Status {
              // An unset variable of a script's must not mean this machine.
              if (v.empty()) return fail("is empty: name a file, or leave the option out");
              a.topology = v;
              return {};
            }),
      given(vm, "node", string(a.node)),
      given(vm, "nodelist", string(a.nodelist)),
      given(vm, "requested", string(requested)),
      given(vm, "format", [&](const std::string& v) { return take_format(a, v); }),
      given(vm, "ranks", [&](const std::string& v) { return take_ranks(a, v); }),
      given(vm, "devices", [&](const std::string& v) { return take_devices(a, v); }),
      given(vm, "asked", [&](const std::string& v) { return take_asked(a, v); }),
      given(vm, "gpus",
            [&](const std::string& v) { return take_numbers(a.allocation.gpus, v, 4096); }),
      given(vm, "cores",
            [&](const std::string& v) { return take_numbers(a.allocation.cores, v, max_cpu); }),
  };
  for (Status& s : all)
    if (!s) return forward(s);
  if (requested != "yes" && requested != "no")
    return fail("--requested: use yes or no", exit_code::usage);
  a.requested = requested == "yes";
  sort_gpus(a);
  // Without a list of GPUs a job step has all of them only if it has the node.
  if (a.format == Format::wire && !a.allocation.gpus && !vm.count("exclusive"))
    a.allocation.gpus.emplace();
  return {};
}

// The machine to plan for, and what has to be said about it.
Result<Machine> find_machine(const Arguments& a, std::vector<Warning>& warnings) {
  if (!a.topology.empty()) return load_file(a.topology);
  if (a.settings.topology.empty()) return load_live();
  auto file = load_file(a.settings.topology);
  if (!file || !a.settings.topology_check) return file;
  auto live = load_live();
  if (!live) return live;
  if (live->cpus == file->cpus) return file;
  warnings.push_back({"topology-mismatch",
                      a.settings.topology + " has CPUs " + to_list(file->cpus) + ", this machine " +
                          to_list(live->cpus) + ": the file is not used",
                      "make the file on a node of this kind: lstopo --of xml", false});
  return live;
}

Status print_machine(const Arguments& a) {
  std::vector<Warning> warnings;
  auto machine = find_machine(a, warnings);
  if (!machine) return forward(machine);
  std::vector<int> gpus;
  for (const Gpu& g : machine->gpus) gpus.push_back(g.index);
  auto nics = choose_nics(*machine, gpus, a.settings.policy);
  if (!nics) return forward(nics);
  for (const Warning& w : warnings) std::cerr << "gpu-bind: " << w.message << '\n';
  std::cout << (a.format == Format::json ? machine_json(*machine, *nics)
                                         : machine_text(*machine, *nics));
  return {};
}

Status print_plan(const Arguments& a) {
  const bool wanted = a.settings.bind == BindSwitch::always ||
                      (a.settings.bind == BindSwitch::on_request && a.requested);
  if (a.format == Format::wire && (!wanted || a.settings.policy.off)) {
    std::cout << empty_wire();
    return {};
  }
  std::vector<Warning> warnings;
  auto machine = find_machine(a, warnings);
  if (!machine) return forward(machine);
  auto made = plan(*machine, a.allocation, a.settings.policy);
  if (!made) return forward(made);
  made->warnings.insert(made->warnings.begin(), warnings.begin(), warnings.end());

  Environment env;
  if (a.settings.policy.off) {
    env.ranks.resize(made->ranks.size());
  } else {
    EnvOptions options{a.settings.env, a.devices, {}};
    if (!a.nodelist.empty())
      // A quarter of the time: a name that does not resolve must not cost the whole answer.
      options.route =
          route_to_peer(a.nodelist, a.node, Deadline::in(Seconds(a.settings.timeout_ms / 4000.0)));
    env = environment(*machine, *made, options);
  }
  // What a file says and the kernel does not have can be shown, but not applied.
  if (a.format == Format::wire && a.topology.empty() && machine->kind != "live")
    fit_to_kernel(*made);

  const Answer answer{*machine, *made, env};
  if (a.format == Format::wire) {
    auto text = plan_wire(answer, a.settings.report, a.node);
    if (!text) return forward(text);
    std::cout << *text;
  } else {
    std::cout << (a.format == Format::json ? plan_json(answer) : plan_text(answer));
  }
  return {};
}

Result<Arguments> parse(int argc, char** argv, const po::options_description& options) {
  Arguments a;
  po::options_description all = options;
  all.add_options()("command", po::value<std::string>());
  po::positional_options_description positional;
  positional.add("command", 1);
  po::variables_map vm;
  using style = po::command_line_style::style_t;
  try {
    po::store(po::command_line_parser(argc, argv)
                  .options(all)
                  .positional(positional)
                  .style(style::unix_style & ~style::allow_guessing)
                  .run(),
              vm);
  } catch (const po::error& e) {
    return fail(std::string(e.what()) + "; see gpu-bind --help", exit_code::usage);
  }
  if (vm.count("help"))
    a.command = "help";
  else if (vm.count("version"))
    a.command = "version";
  else if (vm.count("command"))
    a.command = vm["command"].as<std::string>();
  if (a.command != "plan" && a.command != "show") {
    if (a.command == "help" || a.command == "version") return a;
    return fail(
        (a.command.empty() ? "no command" : "unknown command '" + a.command.substr(0, 80) + "'") +
            ": use plan or show; see gpu-bind --help",
        exit_code::usage);
  }
  if (auto s = take(a, vm); !s) return fail(s.error().what, exit_code::usage);
  if (a.command == "show" && a.format == Format::wire)
    return fail("--format: show has text and json", exit_code::usage);
  return a;
}

int run(int argc, char** argv) {
  const auto options = describe();
  auto a = parse(argc, argv, options);
  // The plugin reads standard output only.
  const auto tell = [&](const Error& e, bool wire) {
    if (wire)
      std::cout << "error " << e.what << '\n';
    else
      std::cerr << "gpu-bind: " << e.what << '\n';
    return e.exit;
  };
  if (!a) {
    bool wire = false;
    for (int i = 1; i < argc; ++i) wire = wire || std::string_view(argv[i]) == "--format=wire";
    return tell(a.error(), wire);
  }
  if (a->command == "help") std::cout << synopsis << '\n' << options;
  if (a->command == "version") std::cout << "gpu-bind (" PACKAGE_NAME ") " PACKAGE_VERSION "\n";
  Status s;
  if (a->command == "plan") s = print_plan(*a);
  if (a->command == "show") s = print_machine(*a);
  if (!s) return tell(s.error(), a->format == Format::wire);
  std::cout.flush();
  return std::cout ? exit_code::done : exit_code::failed;
}

}  // namespace
}  // namespace trainlaunch

int main(int argc, char** argv) {
  try {
    trainlaunch::isolate_hwloc();
    return trainlaunch::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gpu-bind: %s\n", e.what());
    return trainlaunch::exit_code::failed;
  }
}
