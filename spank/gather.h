// Reads what this process and this machine have: the process part of RankFacts, and its devices.
// Nothing here fails: what cannot be read is left out.
#pragma once

#include "bind/bind.h"
#include "facts.h"

namespace trainlaunch {

// Who and where, CPUs, memory, limits, and the part of the environment that counts.
void gather_process(RankFacts& facts);

// The machine as the planner sees it, and what of it this process may open. `words` are the words
// that stand for GPUs in a mask such as CUDA_VISIBLE_DEVICES, where they are known: word ->
// position in Machine::gpus. Without them numbers count the GPUs that can be opened, in PCI order,
// as the drivers' libraries do.
void gather_devices(RankFacts& facts, const Machine& machine, const std::vector<NicChoice>& nics,
                    const std::map<std::string, int>& words);

// Words between separators; none of an empty text.
std::vector<std::string> words_between(std::string_view text, char separator);

// "4(x3),2": ranks on each node as Slurm writes them; that of node `index`, 0 when it says nothing.
int tasks_on_node(std::string_view list, int index);

}  // namespace trainlaunch
