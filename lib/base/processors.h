// The processors that this process may run on, however many the kernel counts.
#pragma once

#include <bitset>

namespace trainlaunch {

// As many as Linux can be built for; the C library's cpu_set_t ends at 1,024.
inline constexpr int most_processors = 8192;
using ProcessorSet = std::bitset<most_processors>;

// Empty where the kernel does not say.
ProcessorSet allowed_processors();

}  // namespace trainlaunch
