#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "topo/topo.h"

#include <doctest/doctest.h>
