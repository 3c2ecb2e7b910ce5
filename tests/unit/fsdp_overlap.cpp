// Whether compute hides communication, by what compute waited for. How much time that saves is
// measured by tests/bench/overlap; the bounds here are wide, since a test may share its machine.
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
