#include "doctor.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "doctor_parts.h"
#include "gather.h"

namespace trainlaunch {
namespace {

using json = nlohmann::ordered_json;

// Every code, in the order of gpu-bind(1).
constexpr FindingCode codes[] = {
    {"cores-far", Severity::error},
    {"cores-few", Severity::warning},
    {"cores-loose", Severity::advice},
    {"cores-one", Severity::warning},
    {"cores-outside", Severity::warning},
    {"cores-shared", Severity::warning},
    {"cores-unknown", Severity::warning},
    {"cuda-order", Severity::advice},
    {"env-differs", Severity::warning},
    {"gloo-interface", Severity::error},
    {"gloo-syntax", Severity::error},
    {"gpu-closed", Severity::error},
    {"gpu-none", Severity::error},
    {"gpus-idle", Severity::warning},
    {"gpus-per-task", Severity::error},
    {"gpus-shared", Severity::error},
    {"hca-inexact", Severity::advice},
    {"hca-per-rank", Severity::error},
    {"hca-prefix", Severity::error},
    {"ib-off", Severity::warning},
    {"locality-unknown", Severity::warning},
    {"mask-twice", Severity::error},
    {"mem-far", Severity::warning},
    {"mem-interleaved", Severity::warning},
    {"mem-strict", Severity::advice},
    {"memlock-low", Severity::error},
    {"nic-closed", Severity::error},
    {"nic-down", Severity::error},
    {"nic-missing", Severity::error},
    {"nic-none", Severity::warning},
    {"nic-slow", Severity::warning},
    {"nics-differ", Severity::error},
    {"no-pmix", Severity::warning},
    {"not-applied", Severity::warning},
    {"not-as-planned", Severity::error},
    {"omp-pinned", Severity::warning},
    {"p2p-off", Severity::warning},
    {"plan-partial", Severity::warning},
    {"rails-differ", Severity::warning},
    {"ranks-unheard", Severity::warning},
    {"socket-interface", Severity::error},
    {"topo-file-missing", Severity::error},
    {"topology-mismatch", Severity::warning},
    {"unbound", Severity::advice},
    {"versions-differ", Severity::warning},
};

Severity severity_of(std::string_view code) {
  for (const FindingCode& c : codes)
    if (code == c.code) return c.severity;
  return Severity::warning;  // a warning of the plan's that is new
}

// Names from files and environments: nothing of them may steer a terminal.
std::string clean(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  return text;
}

// A rank computes on the one GPU it sees; of several that all ranks see, frameworks take the one at
// the place of the local rank; else on all it sees.
std::vector<List> own_gpus(const std::vector<const RankFacts*>& ranks) {
  const auto sorted = [](List list) {
    std::sort(list.begin(), list.end());
    return list;
  };
  const bool alike = std::all_of(ranks.begin(), ranks.end(), [&](const RankFacts* r) {
    return sorted(r->visible) == sorted(ranks.front()->visible);
  });
  std::vector<List> out;
  for (const RankFacts* r : ranks) {
    const size_t seen = r->visible.size(), place = static_cast<size_t>(r->local_rank);
    const bool planned = r->planned && r->planned->from == "plugin" && !r->planned->gpus.empty();
    if (planned && r->differs.empty())
      out.push_back(r->planned->gpus);
    else if (alike && seen > 1 && r->local_ranks > 1)
      out.push_back({r->visible[place % seen]});
    else
      out.push_back(r->visible);
  }
  return out;
}

DoctorJob job_of(const std::vector<RankFacts>& facts) {
  std::map<std::string, std::vector<const RankFacts*>> by_node;
  for (const RankFacts& f : facts) by_node[f.node].push_back(&f);
  DoctorJob job;
  for (auto& [name, ranks] : by_node) {
    std::stable_sort(ranks.begin(), ranks.end(), [](const RankFacts* a, const RankFacts* b) {
      return a->local_rank < b->local_rank;
    });
    job.nodes.push_back({name, ranks, own_gpus(ranks)});
  }
  // In the order of their ranks, as Slurm lists them.
  std::stable_sort(
      job.nodes.begin(), job.nodes.end(),
      [](const DoctorNode& a, const DoctorNode& b) { return a.machine().rank < b.machine().rank; });
  return job;
}

std::string headline(const std::vector<RankFacts>& of) {
  std::set<std::string> nodes;
  for (const RankFacts& f : of) nodes.insert(f.node);
  return std::to_string(of.size()) + (of.size() == 1 ? " rank" : " ranks") + " on " +
         std::to_string(nodes.size()) + (nodes.size() == 1 ? " node" : " nodes");
}

}  // namespace

const char* name_of(Severity severity) {
  switch (severity) {
    case Severity::error:
      return "error";
    case Severity::warning:
      return "warning";
    case Severity::advice:
      return "advice";
  }
  return "";
}

std::span<const FindingCode> finding_codes() { return codes; }

std::vector<Finding> diagnose(const std::vector<RankFacts>& facts) {
  const DoctorJob job = job_of(facts);
  Notes notes;
  look_at_ranks(job, notes);
  look_at_ports(job, notes);
  look_at_environment(job, notes);
  look_across(job, notes);
  return notes.take(job);
}

std::string findings_text(const std::vector<Finding>& findings, const std::vector<RankFacts>& of) {
  std::string out;
  for (const Finding& f : findings)
    out += clean(std::string(name_of(f.severity)) + ": " + f.who + (f.who.empty() ? "" : ": ") +
                 f.message + " [" + f.code + ']') +
           "\n  mend it with: " + clean(f.fix) + '\n';
  if (findings.empty()) out += "nothing to mend: ";
  return out + headline(of) + '\n';
}

std::string findings_json(const std::vector<Finding>& findings, const std::vector<RankFacts>& of) {
  std::set<std::string> nodes;
  for (const RankFacts& f : of) nodes.insert(f.node);
  json list = json::array();
  for (const Finding& f : findings)
    list.push_back({{"code", f.code},
                    {"severity", name_of(f.severity)},
                    {"who", f.who},
                    {"message", f.message},
                    {"fix", f.fix}});
  const json all = {
      {"version", 1}, {"ranks", of.size()}, {"nodes", nodes.size()}, {"findings", list}};
  return all.dump(2, ' ', false, json::error_handler_t::replace) + '\n';
}

// --- What the rules share. ---

Notes::Note& Notes::note(const char* code, const std::string& message, const std::string& fix,
                         const std::string& example) {
  for (Note& n : notes_)
    if (std::string_view(n.code) == code && n.message == message && n.fix == fix) return n;
  return notes_.emplace_back(Note{code, message, fix, example, {}});
}

void Notes::rank(const char* code, const RankFacts& who, const std::string& message,
                 const std::string& fix, const std::string& example) {
  note(code, message, fix, example).ranks[who.node].insert(who.rank);
}

void Notes::node(const char* code, const DoctorNode& who, const std::string& message,
                 const std::string& fix, const std::string& example) {
  note(code, message, fix, example).ranks[who.name];
}

void Notes::job(const char* code, const std::string& message, const std::string& fix) {
  note(code, message, fix, "");
}

std::vector<Finding> Notes::take(const DoctorJob& job) const {
  constexpr size_t most_names = 8;
  std::vector<Finding> out;
  for (const Note& n : notes_) {
    List nodes;
    std::vector<int> ranks;
    for (const DoctorNode& node : job.nodes) {
      const auto at = n.ranks.find(node.name);
      if (at == n.ranks.end()) continue;
      nodes.push_back(node.name);
      ranks.insert(ranks.end(), at->second.begin(), at->second.end());
    }
    std::sort(ranks.begin(), ranks.end());
    std::string who;
    if (nodes.size() > most_names) {
      const size_t more = nodes.size() - most_names;
      nodes.resize(most_names);
      who = join(nodes) + " and " + std::to_string(more) + " more";
    } else {
      who = join(nodes);
    }
    if (!ranks.empty()) who += (ranks.size() == 1 ? " rank " : " ranks ") + to_list(ranks);
    const bool several = ranks.size() > 1 || nodes.size() > 1;
    std::string message = n.message;
    if (!n.example.empty()) message += (several ? " (the first: " : " (") + n.example + ')';
    out.push_back({n.code, severity_of(n.code), who, message, n.fix});
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
  return out;
}

const std::string* variable(const RankFacts& rank, const char* name) {
  const auto at = rank.env.find(name);
  return at == rank.env.end() ? nullptr : &at->second;
}

bool is_on(const RankFacts& rank, const char* name) {
  const std::string* value = variable(rank, name);
  return value && !value->empty() && *value != "0";
}

std::string join(const List& list, const char* between) {
  std::string out;
  for (const std::string& s : list) out += (out.empty() ? "" : between) + s;
  return out;
}

CpuSet cpus_of(const std::string& list) { return parse_cpus(list).value_or(CpuSet()); }

NcclNames NcclNames::parse(std::string_view value) {
  NcclNames n;
  if (value.starts_with('^')) {
    n.exclude = true;
    value.remove_prefix(1);
  }
  if (value.starts_with('=')) {
    n.exact = true;
    value.remove_prefix(1);
  }
  n.names = words_between(value, ',');
  return n;
}

bool NcclNames::names_one(const std::string& device) const {
  const std::string_view name = std::string_view(device).substr(0, device.find(':'));
  const size_t colon = device.find(':');
  const std::string_view port =
      colon == std::string::npos ? std::string_view() : std::string_view(device).substr(colon + 1);
  return std::any_of(names.begin(), names.end(), [&](std::string_view word) {
    // "name:port", and in later releases ":rail:plane" behind it.
    const size_t end = std::min(word.find(':'), word.size());
    std::string_view rest = word.substr(std::min(end + 1, word.size()));
    rest = rest.substr(0, rest.find(':'));
    const std::string_view wanted = word.substr(0, end);
    if (wanted.empty() || (!rest.empty() && !port.empty() && rest != port)) return false;
    return exact ? name == wanted : name.starts_with(wanted);
  });
}

}  // namespace trainlaunch
