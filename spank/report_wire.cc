#include <algorithm>

#include "report.h"
#include "report_parts.h"
#include "wire.h"

namespace trainlaunch {
namespace {

namespace wire = gpu_bind_wire;

class Writer {
 public:
  // `room` for reports; what does not fit is left out.
  explicit Writer(size_t room) : room_(room) {}
  void line(const std::string& word, const std::string& text) {
    out_ += clean(word + ' ' + text) + '\n';
  }
  void say(const std::string& text) {
    const size_t size = std::min(text.size() + sizeof "say \n", wire::max_line);
    if (size > room_) return;
    room_ -= size;
    line("say", text);
  }
  std::string take() { return std::move(out_); }

 private:
  // One line, without control characters, within the contract's length.
  static std::string clean(std::string text) {
    if (text.size() >= wire::max_line) text.resize(wire::max_line - 1);
    for (char& c : text)
      if (static_cast<unsigned char>(c) < 32 || c == 127) c = ' ';
    return text;
  }
  std::string out_;
  size_t room_;
};

void write_variables(Writer& w, const std::vector<Variable>& list) {
  for (const Variable& v : list) w.line("env", (v.set ? "set " : "keep ") + v.name + '=' + v.value);
}

// What the doctor found, but for what is told of the plan in any case.
void write_findings(Writer& w, const Answer& a, const std::string& who,
                    const std::vector<Finding>& findings) {
  const auto told = [&](const std::string& code) {
    return std::any_of(a.plan.warnings.begin(), a.plan.warnings.end(), [&](const Warning& warning) {
      return !warning.quiet && warning.code == code;
    });
  };
  for (const Finding& f : findings) {
    // The node's name stands in front of the line.
    const size_t ranks = f.who.find("rank");
    const std::string whom = ranks == std::string::npos ? "" : f.who.substr(ranks) + ": ";
    if (!told(f.code))
      w.say(who + name_of(f.severity) + ": " + whom + f.message + " [" + f.code +
            "; mend it with: " + f.fix + ']');
  }
}

std::string write(const Answer& a, Report report, const std::string& node,
                  const std::vector<Finding>& findings, size_t room) {
  Writer w(room);
  w.line("gpu-bind-wire", std::to_string(wire::version));
  w.line("digest", digest(a.machine, a.plan));
  const std::string who = "gpu-bind: " + (node.empty() ? "" : node + ": ");
  if (report == Report::full) {
    for (const std::string& why : a.plan.why) w.say(who + why);
    for (const Variable& v : a.env.common) w.say(who + v.name + ": " + source_of(v));
    for (const std::string& note : a.env.notes) w.say(who + "not set: " + note);
  }
  const auto found = [&](const std::string& code) {
    return std::any_of(findings.begin(), findings.end(),
                       [&](const Finding& f) { return f.code == code; });
  };
  const bool advice = report == Report::full || report == Report::doctor;
  for (const Warning& warning : a.plan.warnings)
    if (!warning.quiet)
      w.line("warn",
             who + warning.message + " [" + warning.code + "; mend it with: " + warning.fix + ']');
    else if (advice && !found(warning.code))
      w.say(who + warning.message + " [" + warning.code + "; mend it with: " + warning.fix + ']');
  write_findings(w, a, who, findings);
  if (report == Report::doctor && a.plan.warnings.empty() && findings.empty())
    w.say(who + "nothing to mend");

  for (size_t i = 0; i < a.plan.ranks.size(); ++i) {
    const RankPlan& r = a.plan.ranks[i];
    w.line("rank", std::to_string(i));
    if (!r.keep_cpus) w.line("cpus", to_list(r.cpus));
    if (r.mem && a.plan.mem != MemMode::off)
      w.line("mems",
             (a.plan.mem == MemMode::bind ? "bind " : "preferred ") + std::to_string(*r.mem));
    for (const std::string& name : a.env.unset) w.line("env", "unset " + name);
    write_variables(w, a.env.common);
    write_variables(w, a.env.ranks[i]);
    if (report == Report::summary || report == Report::full) w.say(rank_line(a, i, node));
    if (report == Report::full)
      for (const std::string& why : r.why) w.say(who + "rank " + std::to_string(i) + ": " + why);
    if (report == Report::json) w.say(rank_json(a, i, node));
  }
  return w.take() + "end\n";
}

}  // namespace

Result<std::string> plan_wire(const Answer& a, Report report, const std::string& node,
                              const std::vector<Finding>& findings) {
  // What is applied comes first; reports get the room that is left.
  const size_t bare = write(a, Report::none, node, {}, 0).size();
  if (bare > wire::max_bytes)
    return fail("the plan of " + std::to_string(a.plan.ranks.size()) +
                " ranks is larger than the plugin takes");
  return write(a, report, node, findings, wire::max_bytes - bare);
}

std::string empty_wire() {
  return "gpu-bind-wire " + std::to_string(wire::version) + "\ndigest 0\nend\n";
}

}  // namespace trainlaunch
