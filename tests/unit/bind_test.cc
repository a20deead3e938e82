#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "bind/bind.h"

#include <doctest/doctest.h>
