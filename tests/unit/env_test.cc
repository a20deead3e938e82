#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "env/env.h"

#include <doctest/doctest.h>
