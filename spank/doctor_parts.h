// Shared by the rules behind doctor.h.
#pragma once

#include <functional>
#include <set>

#include "doctor.h"
#include "topo/cpuset.h"

namespace trainlaunch {

using List = std::vector<std::string>;

// The ranks of one node, by local rank, and the GPUs that each computes on.
struct DoctorNode {
  std::string name;
  std::vector<const RankFacts*> ranks;
  std::vector<List> own;
  const RankFacts& machine() const { return *ranks.front(); }  // all ranks of a node see the same
};

struct DoctorJob {
  std::vector<DoctorNode> nodes;
  bool several_nodes() const { return nodes.size() > 1; }
};

// Collects findings; equal ones of several ranks or nodes become one.
class Notes {
 public:
  // `example` is what differs from rank to rank: that of the first is told.
  void rank(const char* code, const RankFacts& who, const std::string& message,
            const std::string& fix, const std::string& example = "");
  void node(const char* code, const DoctorNode& who, const std::string& message,
            const std::string& fix, const std::string& example = "");
  void job(const char* code, const std::string& message, const std::string& fix);
  std::vector<Finding> take(const DoctorJob& job) const;

 private:
  struct Note {
    const char* code;
    std::string message, fix, example;
    std::map<std::string, std::set<int>> ranks;  // of each node; none: the node itself
  };
  Note& note(const char* code, const std::string& message, const std::string& fix,
             const std::string& example);
  std::vector<Note> notes_;
};

// One file of rules each.
void look_at_environment(const DoctorJob& job, Notes& notes);  // doctor_environment.cc
void look_at_ports(const DoctorJob& job, Notes& notes);        // doctor_ports.cc
void look_at_ranks(const DoctorJob& job, Notes& notes);        // doctor_ranks.cc
void look_across(const DoctorJob& job, Notes& notes);          // doctor_across.cc

// A variable of a rank; null: not set. An empty one is set.
const std::string* variable(const RankFacts& rank, const char* name);
bool is_on(const RankFacts& rank, const char* name);  // set, and not 0

std::string join(const List& list, const char* between = ", ");
CpuSet cpus_of(const std::string& list);  // none for what is no list

// NCCL's way of naming devices: "[^][=]name,...", names being prefixes without "=".
struct NcclNames {
  bool exclude = false, exact = false;
  List names;
  static NcclNames parse(std::string_view value);
  // Does the list name this device? Not what NCCL makes of it: `exclude` is the caller's.
  bool names_one(const std::string& device) const;
};

}  // namespace trainlaunch
