// The sub-commands of train-launch, one file each. Each takes the arguments after its name and
// returns the exit code, or an Error whose text is printed for it.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace trainlaunch {

struct Invocation {
  std::vector<std::string> words;      // the whole command line
  std::vector<std::string> arguments;  // after the sub-command's name
  std::vector<int> given;              // descriptors that were open at the start
};

Result<int> run_train(const Invocation& call);
Result<int> run_generate(const Invocation& call);
Result<int> run_report(const Invocation& call);
Result<int> run_checkpoint(const Invocation& call);
Result<int> run_exec(const Invocation& call);

// Sees to it that all of standard output has been written: an answer that did not reach its file is
// none. Says so if not; returns the exit code.
int all_written();

// True when the help text is what is asked for: --help or -h before any "--".
bool wants_help(const std::vector<std::string>& arguments);

}  // namespace trainlaunch
