#include "order.h"

#include "ckpt/directory.h"
#include "ckpt/manifest.h"

namespace trainlaunch::crash {

namespace {

std::string parent_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

std::string base_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

bool is_below(const std::string& path, const std::string& dir) {
  return path.size() > dir.size() && path.compare(0, dir.size(), dir) == 0 &&
         path[dir.size()] == '/';
}

bool is_aside(const std::string& name) { return name.starts_with("step-") && !step_of(name); }

}  // namespace

std::vector<std::string> Order::faults_in(const std::vector<Call>& calls) {
  Order order;
  for (const Call& call : calls)
    if (!call.failed) order.follow(call);
  return order.faults_;
}

void Order::follow(const Call& call) {
  const std::string name = call.name.data(), path = call.path.data();
  if (name == "mkdir") names_[path].unsynced = true;
  if (name == "create" && !names_.contains(path)) names_[path].unsynced = true;
  if (name == "write" || name == "truncate") names_[path].written = true;
  if (name == "rename") rename(path, call.to.data(), call.rank);
  if (name == "fsync") {
    names_[path].written = false;
    lacking_.erase(path);
    for (auto& [other, state] : names_)
      if (parent_of(other) == path && other != path) state.unsynced = false;
  }
  if (name == "unlink") {
    const std::string dir = parent_of(path);
    if (is_trash(base_of(dir)) && names_[dir].unsynced)
      complain("something in " + dir + " is removed before its new name is on disk");
    names_.erase(path);
    lacking_.erase(path);
    lacking_.insert(dir);
  }
  said(name, path, call.rank);
}

void Order::rename(const std::string& from, const std::string& to, int by) {
  const std::string when = " when it becomes " + base_of(to);
  // Who owns a run is told to people only.
  const bool for_people = base_of(from).starts_with(".attempt-");
  if (step_of(base_of(to)) || (!step_of(base_of(from)) && !for_people))
    require(from, /*above=*/false, when);
  if (is_aside(base_of(to)))
    for (const auto& [name, state] : names_)
      if (is_aside(base_of(name)) && parent_of(name) == parent_of(to) && state.unsynced)
        complain(from + " is set aside before " + name + " is on disk");
  std::map<std::string, Name> moved;
  for (auto it = names_.begin(); it != names_.end();) {
    const bool inside = is_below(it->first, from);
    if (inside || it->first == from) {
      moved[to + it->first.substr(from.size())] = it->second;
      it = names_.erase(it);
    } else {
      ++it;
    }
  }
  for (const auto& [name, state] : moved) names_[name] = state;
  names_[to].unsynced = true;
  names_[to].by = by;
}

void Order::said(const std::string& name, const std::string& path, int by) {
  const std::string step =
      path.empty() ? "" : checkpoint_name(std::strtoull(path.c_str(), nullptr, 10));
  if (name == "durable") require("run/" + step, true, " when it is said to be durable");
  if (name == "durable-here") {
    for (const auto& [dir, state] : std::map(names_))
      if (base_of(dir) == step && dir.starts_with("local/"))
        require(dir, true, " when it is said to be durable");
  }
  // What the ranks hear of this one next is that the checkpoint is there.
  if (name == "gather" && path == "save: outcome")
    for (const auto& [dir, state] : names_)
      if (step_of(base_of(dir)) && state.unsynced && state.by == by)
        complain("the name " + dir + " is not on disk when the ranks are told of it");
  if (name == "cleaned")
    for (const std::string& dir : lacking_) complain("what went from " + dir + " may come back");
  if (name == "counted") require("run/run.starts", true, " when the start is counted");
  if (name != "opened" && name != "moved") return;
  for (const auto& [other, state] : names_) {
    const std::string base = base_of(other);
    const bool owner = name == "opened" && base.starts_with(".attempt-");
    if ((owner || is_aside(base)) && state.unsynced)
      complain(other + " is not on disk when " + name);
  }
}

void Order::require(const std::string& path, bool above, const std::string& when) {
  for (const auto& [name, state] : names_) {
    if (base_of(name) == verified_name) continue;  // may get lost
    const bool inside = is_below(name, path);
    if ((inside || name == path) && state.written) complain(name + " has bytes not on disk" + when);
    if (inside && state.unsynced) complain("the name " + name + " is not on disk" + when);
    const bool holds = name == path || is_below(path, name);
    if (above && holds && state.unsynced) complain("the name " + name + " is not on disk" + when);
  }
}

void Order::complain(const std::string& text) { faults_.push_back(text); }

}  // namespace trainlaunch::crash
