#include "launcher/plans.h"

#include <map>
#include <set>

#include "launcher/supervisor.h"

namespace trainlaunch {
namespace {

// GPU_BIND_PLAN, gpu-bind-spank(8): digits of the whole plan, of the rails, of the ports.
constexpr size_t plan_digits = 64, rails_at = 32, ports_at = 48, part_digits = 16;

constexpr const char* unbound = "-";

constexpr const char* ask_doctor =
    "; `srun gpu-bind check --format=json | gpu-bind doctor -` in this job says how";

// Nodes in groups that gave the same answer: "n1, n2 against n3"; empty when all gave one. Nodes
// without an answer do not count.
std::string groups(const World& world, const std::map<int, std::string>& answer_of) {
  constexpr size_t most_names = 6;
  std::vector<std::string> answers;  // in the order of the nodes
  std::map<std::string, std::vector<int>> nodes;
  for (const auto& [node, answer] : answer_of) {
    if (!nodes.contains(answer)) answers.push_back(answer);
    nodes[answer].push_back(node);
  }
  if (answers.size() < 2) return "";
  std::string out;
  for (const std::string& answer : answers) {
    if (!out.empty()) out += " against ";
    const std::vector<int>& list = nodes[answer];
    for (size_t i = 0; i < list.size() && i < most_names; ++i)
      out += (i ? ", " : "") + world.nodes[static_cast<size_t>(list[i])];
    if (list.size() > most_names)
      out += " and " + std::to_string(list.size() - most_names) + " more";
  }
  return out;
}

}  // namespace

std::string plan_word(const World& world, const Environment& environment) {
  if (world.local_rank != 0) return "";
  const char* plan = environment("GPU_BIND_PLAN");
  const std::string word = plan ? plan : "";
  const bool known =
      word.size() == plan_digits && word.find_first_not_of("0123456789abcdef") == std::string::npos;
  return known ? word : unbound;
}

std::vector<std::string> plan_differences(const World& world,
                                          const std::vector<std::string>& words) {
  std::map<int, std::string> bound, ports;
  std::map<int, int> ranks;                         // of each node
  std::map<int, std::map<int, std::string>> rails;  // of nodes with equally many ranks
  for (const int node : world.node_of) ++ranks[node];
  for (size_t r = 0; r < words.size() && r < world.node_of.size(); ++r) {
    if (words[r].empty()) continue;
    const int node = world.node_of[r];
    bound[node] = words[r] == unbound ? "not bound" : "bound";
    if (words[r].size() != plan_digits) continue;
    rails[ranks[node]][node] = words[r].substr(rails_at, part_digits);
    ports[node] = words[r].substr(ports_at, part_digits);
  }
  std::vector<std::string> out;
  if (const std::string differ = groups(world, bound); !differ.empty())
    out.push_back("some nodes have a binding plan and others have none (" + differ +
                  "): they will not be equally fast" + ask_doctor);
  if (const std::string differ = groups(world, ports); !differ.empty())
    out.push_back("nodes differ in the number or kind of their fabric ports (" + differ +
                  "): NCCL may hang, or runs at the pace of the poorest" + ask_doctor);
  for (const auto& [count, of] : rails)
    if (const std::string differ = groups(world, of); !differ.empty())
      out.push_back("nodes differ in which port serves which rank (" + differ +
                    "): traffic between equal local ranks crosses rails" + ask_doctor);
  return out;
}

Status compare_plans(Session& session, const Environment& environment, Deadline deadline) {
  const World& world = session.world;
  if (world.nodes.size() < 2) return {};
  Message call;
  call.kind = Message::Kind::gather;
  call.name = "binding plans";
  call.values = {plan_word(world, environment)};
  auto words = session.link->call(call, deadline);
  if (!words) return forward(words);
  if (world.rank == 0)
    for (const std::string& line : plan_differences(world, *words)) say(line);
  return {};
}

}  // namespace trainlaunch
