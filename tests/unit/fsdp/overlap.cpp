// Tests that compute hides communication, by measuring how long compute waits. The bounds are wide,
// because the test may share its machine with other processes. tests/bench/overlap measures the
// time that overlap saves.
#include <doctest/doctest.h>

#include "overlap_run.hpp"

using namespace atoll_test;

TEST_CASE("a delay in a prefetched gather hides behind compute") {
  const auto figures = run_overlap({.prefetch = 1, .planted_ms = 50});
  MESSAGE("exposed ", figures.exposed_ms, " ms of a step of ", figures.step_ms, " ms");
  CHECK(figures.exposed_ms < 35.0);
}

TEST_CASE("without prefetch the same delay is exposed") {
  const auto figures = run_overlap({.prefetch = 0, .planted_ms = 50});
  MESSAGE("exposed ", figures.exposed_ms, " ms of a step of ", figures.step_ms, " ms");
  CHECK(figures.exposed_ms >= 49.0);
}
