// Jobs as the matrix runs them: each rank is a process that does with its checkpoints what a
// training run does, on content that is known to the tests.
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/ckpt.h"
#include "faults.h"

namespace trainlaunch::crash {

struct Job {
  std::string root;              // what is watched; RUN is root/run, the local directory root/local
  std::vector<int> per_node{1};  // ranks
  bool local = false;            // every step on the nodes, even ones in RUN besides
  std::vector<uint64_t> steps;   // saved after the resumption, one after the other
  int keep = 2;
  int writers = 0;
  bool wait_for_tracer = false;  // before the first save
  rlim_t largest_file = 0;       // bytes; 0: no limit

  std::string run() const { return root + "/run"; }
};

// A Sheet in memory that processes share.
class SharedSheet {
 public:
  SharedSheet();
  ~SharedSheet();
  SharedSheet(const SharedSheet&) = delete;
  SharedSheet& operator=(const SharedSheet&) = delete;
  Sheet& operator*() const { return *sheet_; }
  Sheet* operator->() const { return sheet_; }

 private:
  Sheet* sheet_;
};

enum class End { done, killed, crashed, hung };

// A job in progress, of which there is one at a time. Where one rank is killed the others hear of
// it; when the power is gone all go.
class Running {
 public:
  Running(const Job& job, const Fault& fault, Sheet& sheet);
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  End wait();
  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }

 private:
  std::vector<pid_t> pids_;
  bool power_;
};

inline End run_job(const Job& job, const Fault& fault, Sheet& sheet) {
  return Running(job, fault, sheet).wait();
}

// What is wrong with what a job left behind; empty when nothing is. Another job resumes, with so
// many ranks on each node: it must find a step that is not older than `durable`, with the values of
// that step, pass over at most `bad` checkpoints, leave no litter, and save the step after.
std::string judge(const Job& job, uint64_t durable, const std::vector<int>& per_node, size_t bad);

// Cleans RUN, as `train-launch checkpoint gc` does; what is wrong with what is left then.
std::string clean_up(const Job& job);

// Names in RUN, and in its checkpoints, that do not belong there.
std::string litter_in(const std::string& run);

}  // namespace trainlaunch::crash
