// Numbers for people.
#pragma once

#include <cstdint>
#include <string>

namespace trainlaunch {

std::string grouped(uint64_t n);          // "1,115,394"
std::string grouped_whole(double x);      // its whole part, or as fixed() where that is long
std::string mebibytes(uint64_t bytes);    // "12.3 MiB"
std::string binary_size(uint64_t bytes);  // the same, from 10 GiB on in GiB
std::string duration(double seconds);     // "8s", "1m 20s", "2h 05m"
std::string fixed(double x, int digits);  // printf's %.*f; %e where that is long
std::string plural(uint64_t n, const char* what);  // "1 rank", "4 ranks"

}  // namespace trainlaunch
