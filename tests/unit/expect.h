// What a rank says of itself: nothing, or what is wrong.
#pragma once

#include <string>

// Inside a rank: ends it with a text unless the condition holds.
#define EXPECT(condition)                                                          \
  do {                                                                             \
    if (!(condition)) return "line " + std::to_string(__LINE__) + ": " #condition; \
  } while (false)
#define EXPECT_OK(result)                                                                    \
  do {                                                                                       \
    if (!(result)) return "line " + std::to_string(__LINE__) + ": " + (result).error().what; \
  } while (false)
