#include "answer.h"

namespace trainlaunch::plugin {
namespace wire = gpu_bind_wire;
namespace {

bool is_hex(std::string_view s) {
  for (const char c : s)
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))) return false;
  return !s.empty() && s.size() <= 64;
}

void make_printable(std::string_view line, char* text) {
  char* p = text + (line.data() - text);
  for (size_t i = 0; i < line.size(); ++i)
    if (!printable(p[i])) p[i] = '?';
}

// One line of a rank's part, added to `plan`. Null if it is in order, else what is wrong with it.
const char* read_rank_line(std::string_view line, RankPlan& plan) {
  if (starts_with(line, "say ")) return nullptr;
  if (!all_printable(line)) return "control characters";
  if (take(line, "cpus ")) {
    if (plan.has_cpus) return "cpus twice";
    plan.has_cpus = true;
    return parse_list(line, plan.cpus) ? nullptr : "not a list of CPUs";
  }
  if (take(line, "mems ")) {
    if (plan.mem_policy != MemPolicy::leave) return "mems twice";
    if (take(line, "preferred "))
      plan.mem_policy = MemPolicy::preferred;
    else if (take(line, "bind "))
      plan.mem_policy = MemPolicy::bind;
    else
      return "unknown memory policy";
    return parse_list(line, plan.mems) ? nullptr : "not a list of memory nodes";
  }
  if (!take(line, "env ")) return "unknown line";

  Variable v;
  if (take(line, "unset ")) {
    v.give = Give::unset;
    v.name = line;
    if (!wire::is_device_variable(v.name)) return nullptr;
  } else {
    if (take(line, "set "))
      v.give = Give::set;
    else if (!take(line, "keep "))
      return "neither keep, set nor unset";
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) return "a variable without a value";
    v.name = {line.data(), equals};
    v.value = {line.data() + equals + 1, line.size() - equals - 1};
    // Dropped: not a name we set.
    if (!wire::is_device_variable(v.name) && !wire::is_network_variable(v.name)) return nullptr;
  }
  if (plan.variable_count == wire::max_env) return "too many variables";
  plan.variables[plan.variable_count++] = v;
  return nullptr;
}

}  // namespace

template <int N>
bool parse_list(std::string_view list, Bits<N>& bits) {
  std::string_view range;
  uint32_t next = 0;
  if (list.empty() || list.back() == ',') return false;
  while (next_part(list, ',', range)) {
    const size_t dash = range.find('-');
    const size_t n = dash == std::string_view::npos ? range.size() : dash;
    uint32_t first = 0, last = 0;
    if (!parse_number(std::string_view(range.data(), n), N - 1, first) || first < next)
      return false;
    last = first;
    if (dash != std::string_view::npos) {
      range.remove_prefix(dash + 1);
      if (!parse_number(range, N - 1, last) || last < first) return false;
    }
    for (uint32_t i = first; i <= last; ++i) bits.set(static_cast<int>(i));
    next = last + 1;
  }
  return true;
}
template bool parse_list(std::string_view, CpuBits&);
template bool parse_list(std::string_view, MemBits&);

bool Answer::read(char* text, size_t size, unsigned ranks, Reason& why) {
  *this = Answer();
  std::string_view rest(text, size), line;
  long number = 0;
  const auto bad = [&](const char* what) {
    why.set("the planner's answer is void: line ", number, ": ", what);
    return false;
  };
  unsigned opened = 0;
  RankPlan plan;
  enum { head, body, tail } at = head;
  const char* node_begin = nullptr;
  const char* ranks_begin = nullptr;

  while (next_part(rest, '\n', line)) {
    ++number;
    if (line.size() > wire::max_line) return bad("too long");
    if (at == tail) return bad("text after the end");
    if (take(line, "error ")) {
      make_printable(line, text);
      why.set(line.empty() ? "the planner gave no reason" : line);
      return false;
    }
    if (number == 1) {
      uint32_t version = 0;
      if (!take(line, "gpu-bind-wire ") || !parse_number(line, 1u << 30, version))
        return bad("this is no answer of gpu-bind");
      if (version != wire::version) return bad("another version of the wire; reinstall both parts");
    } else if (number == 2) {
      if (!take(line, "digest ") || !is_hex(line)) return bad("no digest");
      digest_ = line;
      node_begin = ranks_begin = rest.data();
    } else if (line == "end") {
      at = tail;
      if (opened == 0) ranks_begin = line.data();
      node_ = {node_begin, static_cast<size_t>(ranks_begin - node_begin)};
      ranks_ = {ranks_begin, static_cast<size_t>(line.data() - ranks_begin)};
    } else if (take(line, "rank ")) {
      uint32_t i = 0;
      if (!parse_number(line, wire::max_ranks - 1, i) || i != opened)
        return bad("rank out of order");
      if (opened == 0) ranks_begin = line.data() - strlen("rank ");
      ++opened;
      at = body;
      plan = RankPlan();
    } else if (starts_with(line, "say ") || (at == head && starts_with(line, "warn "))) {
      make_printable(line, text);
    } else if (at == head) {
      return bad("unknown line");
    } else if (const char* what = read_rank_line(line, plan)) {
      return bad(what);
    }
  }
  if (at != tail) return bad("cut short");
  if (opened != 0 && opened != ranks) {
    why.set("the planner answered for ", opened, " ranks of ", ranks);
    return false;
  }
  return true;
}

std::string_view Answer::rank(unsigned i) const {
  std::string_view rest = ranks_, line;
  unsigned opened = 0;
  const char* begin = nullptr;
  while (next_part(rest, '\n', line)) {
    if (!starts_with(line, "rank ")) continue;
    if (opened == i + 1) return {begin, static_cast<size_t>(line.data() - begin)};
    ++opened;
    begin = rest.data();
  }
  if (opened != i + 1) return {};
  return {begin, static_cast<size_t>(ranks_.data() + ranks_.size() - begin)};
}

bool Answer::next_text(std::string_view& rest, std::string_view& text) {
  while (next_part(rest, '\n', text))
    if (take(text, "say ") || take(text, "warn ")) return true;
  return false;
}

RankPlan Answer::plan(unsigned i) const {
  RankPlan plan;
  std::string_view rest = rank(i), line;
  while (next_part(rest, '\n', line)) read_rank_line(line, plan);
  return plan;
}

}  // namespace trainlaunch::plugin
