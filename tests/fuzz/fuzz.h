// Every parser of gpu-bind and gpu_bind.so as a target of libFuzzer. One program holds them all:
// which one it feeds says the environment variable TL_FUZZ.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace fuzz {

void topology(std::string_view text);     // hwloc XML, NCCL XML, topo -m, and a plan for what it is
void answer(std::string_view text);       // the planner's answer, as the plugin reads it
void options(std::string_view text);      // option values, and what was asked of Slurm
void config(std::string_view text);       // gpu-bind.conf, as planner and plugin read it
void hosts(std::string_view text);        // host lists
void lists(std::string_view text);        // lists of CPUs and memory nodes
void safetensors(std::string_view text);  // a safetensors file's header
void facts(std::string_view text);        // what `check` printed, and plans as JSON

// What must hold whatever the input.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

// One line that can be shown to anyone.
inline void require_line(std::string_view text) {
  require(!text.empty(), "an error says something");
  for (const char c : text) require(c >= ' ' && c <= '~', "an error is one printable line");
}

}  // namespace fuzz
