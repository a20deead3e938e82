#include "arguments.h"

#include <sys/utsname.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>

namespace po = boost::program_options;

namespace trainlaunch {
namespace {

// Options that are keys of gpu-bind.conf too.
constexpr const char* shared_keys[] = {"policy", "visible", "cpu",    "mem",
                                       "nic",    "env",     "report", "strict"};

}  // namespace

po::options_description describe_options() {
  po::options_description d("options", 100);
  const auto text = [] { return po::value<std::string>(); };
  auto add = d.add_options();
  add("topology", text()->value_name("FILE"),
      "plan for the machine in FILE: hwloc or NCCL XML, `nvidia-smi topo -m`, a copied /sys "
      "[this machine]");
  add("format", text()->value_name("FORM"),
      "text, json, svg (a picture), nccl-xml (show), wire (plan) [text]");
  add("ranks", text()->value_name("N"), "ranks on this node [one per GPU]");
  add("gpus", text()->value_name("LIST"), "the job step's GPUs, numbered in PCI order [all]");
  add("devices", text()->value_name("LIST"),
      "Slurm's words for these GPUs, as in CUDA_VISIBLE_DEVICES [numbers]");
  add("cores", text()->value_name("LIST"), "the job step's cores, Slurm's numbers [all]");
  add("exclusive", "the whole node is the job's");
  add("asked", text()->value_name("LIST"),
      "of cpu,mem,gpu: bound by Slurm on the user's request, left alone");
  add("policy", text()->value_name("POLICY"), "auto, closest, map:LIST, off [auto]");
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
  add("environment", text()->value_name("LINES"),
      "for the plugin's report doctor: what ranks have, NAME=VALUE in each line");
  add("plan", text()->value_name("FILE"),
      "for check: the plan, as `plan --format=json` prints it [made again]");
  add("cache", text()->value_name("DIR"),
      "in wire form: where `cache` has kept this node's topology; for cache: where to keep it");
  add("help", "this text");
  add("version", "the version");
  return d;
}

namespace {

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

Status take_environment(Arguments& a, const std::string& value) {
  std::istringstream in(value);
  for (std::string line; std::getline(in, line);) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos || equals == 0)
      return fail("not of the form NAME=VALUE", exit_code::usage);
    a.environment[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return {};
}

// Slurm's words for GPUs: numbers, UUIDs, MIG names.
Status take_devices(Arguments& a, const std::string& value) {
  for (const std::string& w : words_of(value)) {
    if (w.empty() || w.size() > 96 ||
        w.find_first_not_of(
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_:/.") !=
            std::string::npos)
      return fail("not a list of device names", exit_code::usage);
    if (std::find(a.devices.begin(), a.devices.end(), w) != a.devices.end())
      return fail("names the device " + w + " twice", exit_code::usage);
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
  else if (value == "nccl-xml")
    a.format = Format::nccl_xml;
  else if (value == "svg")
    a.format = Format::svg;
  else
    return fail("'" + value.substr(0, 80) + "': use text, json, svg, nccl-xml or wire");
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

// What Slurm calls this node, unless its configuration gives nodes other names.
std::string this_host() {
  utsname host{};
  uname(&host);
  const std::string_view name = host.nodename;
  return std::string(name.substr(0, name.find('.')));
}

Status take(Arguments& a, const po::variables_map& vm) {
  const std::string config = vm.count("config") ? vm["config"].as<std::string>() : default_config;
  const std::string node = vm.count("node") ? vm["node"].as<std::string>() : this_host();
  if (auto s = read_config(a.settings, config, vm.count("config") > 0, node); !s) return s;
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
      given(vm, "plan", string(a.plan)),
      given(vm, "node", string(a.node)),
      given(vm, "cache", string(a.cache)),
      given(vm, "nodelist", string(a.nodelist)),
      given(vm, "requested", string(requested)),
      given(vm, "format", [&](const std::string& v) { return take_format(a, v); }),
      given(vm, "ranks", [&](const std::string& v) { return take_ranks(a, v); }),
      given(vm, "devices", [&](const std::string& v) { return take_devices(a, v); }),
      given(vm, "environment", [&](const std::string& v) { return take_environment(a, v); }),
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

constexpr std::string_view commands[] = {"plan", "show", "check", "doctor", "cache"};

// What the plugin told the planner when it bound this rank, so that the same plan is made again.
std::vector<std::string> words_of_plugin() {
  std::vector<std::string> out;
  const char* given = std::getenv("GPU_BIND_STEP");
  std::string_view rest = given && std::getenv("GPU_BIND_PLAN") ? given : "";
  while (!rest.empty()) {
    // A value may hold blanks.
    const size_t end = std::min(rest.find(" --"), rest.size());
    out.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return out;
}

}  // namespace

Result<Arguments> parse_arguments(int argc, char** argv, const po::options_description& options) {
  Arguments a;
  po::options_description all = options;
  all.add_options()("command", po::value<std::string>())("files",
                                                         po::value<std::vector<std::string>>());
  po::positional_options_description positional;
  positional.add("command", 1).add("files", -1);
  po::variables_map vm;
  using style = po::command_line_style::style_t;
  try {
    po::store(po::command_line_parser(argc, argv)
                  .options(all)
                  .positional(positional)
                  .style(style::unix_style & ~style::allow_guessing)
                  .run(),
              vm);
    for (const char* option : {"ranks", "gpus", "cores", "policy", "visible", "cpu", "mem", "nic"})
      a.plan_asked = a.plan_asked || vm.count(option);
    if (vm.count("command") && vm["command"].as<std::string>() == "check")
      po::store(po::command_line_parser(words_of_plugin()).options(options).run(), vm);
  } catch (const po::error& e) {
    return fail(std::string(e.what()) + "; see gpu-bind --help", exit_code::usage);
  }
  if (vm.count("help"))
    a.command = "help";
  else if (vm.count("version"))
    a.command = "version";
  else if (vm.count("command"))
    a.command = vm["command"].as<std::string>();
  if (a.command == "help" || a.command == "version") return a;
  if (a.command.empty())
    return fail("no command: use plan, show, check, doctor or cache; see gpu-bind --help",
                exit_code::usage);
  if (std::find(std::begin(commands), std::end(commands), a.command) == std::end(commands))
    return fail("unknown command '" + a.command.substr(0, 80) +
                    "': use plan, show, check, doctor or cache; see gpu-bind --help",
                exit_code::usage);
  if (vm.count("files")) a.files = vm["files"].as<std::vector<std::string>>();
  if (!a.files.empty() && a.command != "doctor")
    return fail("'" + a.files.front().substr(0, 80) + "': " + a.command +
                    " takes options only; see gpu-bind --help",
                exit_code::usage);
  if (auto s = take(a, vm); !s) return fail(s.error().what, exit_code::usage);
  const bool shows = a.command == "show", drawn = shows || a.command == "plan";
  if ((a.format == Format::wire && a.command != "plan") || (a.format == Format::svg && !drawn) ||
      (a.format == Format::nccl_xml && !shows))
    return fail("--format: " + a.command + " has text" +
                    (shows   ? ", json, svg and nccl-xml"
                     : drawn ? ", json and svg"
                             : " and json"),
                exit_code::usage);
  if (a.command == "cache" && a.cache.empty())
    return fail("cache: where? Use --cache=DIR, as in plugstack.conf", exit_code::usage);
  if (!a.plan.empty() && a.command != "check")
    return fail("--plan: only check compares with a plan", exit_code::usage);
  return a;
}

}  // namespace trainlaunch
