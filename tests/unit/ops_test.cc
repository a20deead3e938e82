// The program of the tests of lib/ops; they are in ops_*_test.cc.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
