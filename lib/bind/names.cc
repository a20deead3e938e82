#include <algorithm>
#include <map>

#include "bind/bind.h"

namespace trainlaunch {
namespace {

bool is_instance(const std::string& word) { return word.starts_with("MIG-"); }

// The GPU or MIG instance that has this UUID; or -1.
int gpu_called(const Machine& m, const std::string& word) {
  for (size_t g = 0; g < m.gpus.size(); ++g)
    if (is_instance(word) ? m.gpus[g].mig == word : m.gpus[g].mig.empty() && m.gpus[g].uuid == word)
      return static_cast<int>(g);
  return -1;
}

}  // namespace

StepGpus find_gpus(const Machine& m, const std::vector<int>& numbers,
                   const std::vector<std::string>& words) {
  StepGpus step;
  if (words.size() != numbers.size()) {
    step.gpus = numbers;
    step.words = words;
    return step;
  }
  std::map<int, std::string> word_of;
  for (size_t i = 0; i < words.size(); ++i) {
    const int g = words[i].empty() ? -1 : gpu_called(m, words[i]);
    if (g < 0 && is_instance(words[i])) {
      step.warnings.push_back(
          {"mig-unknown",
           "this machine does not show the MIG instance " + words[i] +
               " of the step: its GPUs are left as Slurm gave them",
           "NVIDIA's management library, libnvidia-ml.so.1, where the planner finds it", false});
      return step;
    }
    word_of.emplace(g < 0 ? numbers[i] : g, words[i]);
  }
  for (const auto& [gpu, word] : word_of) {
    step.gpus.push_back(gpu);
    step.words.push_back(word);
  }
  return step;
}

}  // namespace trainlaunch
