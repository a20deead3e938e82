// Sets of CPU numbers, and lists of numbers in Linux form ("0-3,8,10-11").
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/processors.h"
#include "base/result.h"

namespace trainlaunch {

inline constexpr int max_cpu = most_processors;  // CPU numbers are below this
using CpuSet = ProcessorSet;

// Numbers of a list as they stand there; each must be below `limit`, and there are no more than
// that.
Result<std::vector<int>> parse_sequence(std::string_view text, int limit);

// The same, ascending and without repeats.
Result<std::vector<int>> parse_list(std::string_view text, int limit);
Result<CpuSet> parse_cpus(std::string_view text);

std::string to_list(const std::vector<int>& ascending);
std::string to_list(const CpuSet& cpus);

// The lowest CPU of a set, or -1.
int first_of(const CpuSet& cpus);

}  // namespace trainlaunch
